"""Tests that need a GPU; a package, so that files may be named as their host twins are."""
