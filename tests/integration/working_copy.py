"""A copy of the repository's files as they are now, committed or not."""

import subprocess
from pathlib import Path

from toolchain.repository import REPOSITORY


def copy_repository(directory: Path) -> Path:
    """Copy every file that git does not ignore into a new directory, and return that."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    # A file that is deleted but not yet committed is still listed.
    present = [name for name in names if name and (REPOSITORY / name).is_file()]
    directory.mkdir(parents=True)
    subprocess.run(["cp", "--parents", "--target-directory", directory, *present], cwd=REPOSITORY, check=True)
    return directory
