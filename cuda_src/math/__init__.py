"""Kernel sources (package data)."""
