"""Opening files of a data set, with one-line messages for what usually goes wrong."""

import os

from splaxel_mpi.errors import UserError

LFS_START = b"version https://git-lfs"


def open_file(path):
    """Binary file object of a regular file; UserError when it is missing, unreadable or a
    Git-LFS pointer left in place of the content."""
    try:
        if not os.path.isfile(path):  # also keeps pipes and devices from being opened
            raise UserError(f"{path}: file not found")
        file = open(path, "rb")
        start = file.read(len(LFS_START))
        file.seek(0)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path!s}: cannot be read: {reason}") from None
    if start == LFS_START:
        file.close()
        raise UserError(
            f"{path}: is a Git-LFS pointer, not the file itself; fetch it with 'git lfs pull'"
        )
    return file


def read_text(path):
    """Whole text of a file without byte order mark; bytes that are not UTF-8 survive as
    surrogates, as in file names."""
    with open_file(path) as file:
        try:
            return file.read().decode("utf-8", "surrogateescape").lstrip("\ufeff")
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def one_line(message):
    """The message with line breaks and other unprintable characters of names escaped."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in message
    )
