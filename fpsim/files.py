"""Writing of result files completely or not at all, locks, and checks that a folder can be written to."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fpsim.errors import shown

INTERRUPTED = 130  # exit code of a command after Ctrl-C: 128 + SIGINT, as in shells
DRAFTS_KEPT = 86400  # seconds after which a draft must be of a killed process
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h; macOS calls the same number RENAME_SWAP


def path_of(path: object, name: str = "path") -> Path:
    """Convert a path, a str or an os.PathLike, to a pathlib.Path; name: the argument's name, for the error.

    Raises:
      TypeError: path is neither a str nor a path.
      ValueError: path is an empty str, which pathlib takes for the current folder.

    Example:
      >>> from fpsim.files import path_of
      >>> path_of("codes.npz").suffix
      '.npz'
    """
    if isinstance(path, str) and not path:
        raise ValueError(f"{name} must not be empty; got ''. Pass '.' for the current folder.")
    try:
        return Path(path)  # type: ignore[arg-type]  # what is no path is refused
    except TypeError:
        raise TypeError(f"{name} must be a text or a pathlib.Path; got {shown(path)}.") from None


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a file to write bytes to; it replaces `path` when the `with` block ends, or is removed if the block fails.

    Readers see the old file or the complete new one, even if this process is killed. An existing file keeps its
    permissions, and one that is read-only is refused; of a symbolic link, the file to which it leads is replaced. An
    OSError names `path`.
    """
    named = path_of(path)
    target = _writable(named)
    sweep(target.parent, f".{glob.escape(target.name)}-????????")
    draft = target.parent / f".{target.name}-{secrets.token_hex(4)}"
    with naming(named):
        file = draft.open("xb")
    try:
        with file:
            yield file
        with naming(named):
            if target.is_file():
                draft.chmod(target.stat().st_mode & 0o7777)
            os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _writable(named: Path) -> Path:
    """Return a path without symbolic links; raise a PermissionError, which names `named`, for a read-only file."""
    target = Path(os.path.realpath(named))
    if target.is_file() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(named))
    return target


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Make an OSError raised in the `with` block name the file `target` instead of its temporary file."""
    try:
        yield
    except OSError as reason:
        raise OSError(reason.errno, reason.strerror, str(target)) from None  # Python picks the subclass


def write_whole(path: str | Path, text: str) -> None:
    """Write text to a file as UTF-8, completely or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


def require_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a folder, created if missing, after checking that files can be written to it.

    Raises:
      ValueError: the folder cannot be created or written to, or is a file.
    """
    folder = path_of(path, "folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as reason:
        raise ValueError(
            f"results go to a folder that can be written to; got {shown(str(folder))}: {reason.strerror}. Name another."
        ) from None


def require_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file, after checking that it can be written, as its folder exists and takes new files.

    Raises:
      OSError: there is no such folder, it cannot be written to, or `path` is a folder or a read-only file; the error
        names `path`.
    """
    target = path_of(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    with naming(target), tempfile.TemporaryFile(dir=_writable(target).parent):
        return target


def lock(file: IO[Any], refusal: str) -> bool:
    """Lock an open file for this process, until it is closed or the process ends.

    Return False on Windows and on file systems that have no such locks. Raise a ValueError with the text `refusal` if
    another process has locked the file.

    Example:
      >>> import tempfile
      >>> from fpsim.files import lock
      >>> with tempfile.NamedTemporaryFile() as mine, open(mine.name) as other:
      ...     lock(mine, "mine"), lock(other, "Wait for the other process.")
      Traceback (most recent call last):
      ValueError: Wait for the other process.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(refusal) from None
    except OSError:  # a file system without locks
        return False
    return True


def sync(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, is on the disk; ignore folders on Windows."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(folder: Path, own_names: Collection[str]) -> Iterator[Path]:
    """Yield a folder for new files, which replace those of an earlier run all at once when the `with` block ends.

    If the block fails, the new files are removed. Readers of `folder` see either all old files or all new ones, even if
    this process is killed, on systems that can exchange two folders in one operation (Linux, macOS). Exceptions: the
    current folder, a mount point, and a folder whose parent cannot be written to; there the files are moved one by one,
    and moved back if that fails.

    Args:
      folder: an existing folder; files in it whose names are not in `own_names` stay.
      own_names: names of all files that this run or an earlier one writes; those of the earlier run are removed.

    Example:
      >>> import tempfile, pathlib
      >>> from fpsim.files import replacing
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with replacing(pathlib.Path(folder), ["a.txt"]) as drafts:
      ...         _ = (drafts / "a.txt").write_text("complete")
      ...     [path.name for path in pathlib.Path(folder).iterdir()]
      ['a.txt']
    """
    target = Path(os.path.realpath(folder))  # of a link, the folder to which it leads is replaced
    draft_name = f".{target.name}-writing-"
    for left in _old(target.parent, f"{glob.escape(draft_name)}*"):
        _clear(left, target, own_names)
    sweep(target, ".writing-*")
    swaps = os.access(target.parent, os.W_OK) and not target.is_mount() and not target.samefile(".")
    place, prefix = (target.parent, draft_name) if swaps else (target, ".writing-")
    room = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    drafts = room / "new"
    try:
        drafts.mkdir()
        yield drafts
        if not swaps or not _swapped(drafts, target, own_names):
            _move_each(drafts, target, own_names)
    finally:
        _clear(room, target, own_names)


def sweep(folder: Path, pattern: str) -> None:
    """Remove temporary files of killed processes: those in `folder` that match a glob pattern and are older than a day.

    Errors are ignored.
    """
    for path in _old(folder, pattern):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _old(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder that match a glob pattern and are older than a day."""
    paths = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process removed it
            if path.lstat().st_mtime < time.time() - DRAFTS_KEPT:
                paths.append(path)
    return paths


def _clear(room: Path, target: Path, own_names: Collection[str]) -> None:
    """Remove the temporary folder `room` of a run, after moving files that are not the run's from it to `target`.

    The files are in the subfolder "new", which holds the new files or, once exchanged with `target`, the former ones.
    Files named in `own_names` are the run's, and are removed. If a file cannot be moved, nothing is removed.
    """
    with contextlib.suppress(OSError):
        _bring(room / "new", target, own_names)
        shutil.rmtree(room)


def _swapped(drafts: Path, target: Path, own_names: Collection[str]) -> bool:
    """Exchange a folder of new files, `drafts`, with the folder `target` that they replace; return whether it worked.

    Files of `target` whose names are not in `own_names` are kept: they are moved back into it. If the system cannot
    exchange folders, both have the same files as before.
    """
    after = Path(os.path.realpath(drafts))  # where the exchange puts the old folder
    for other in target.iterdir():
        if other.name in own_names:
            continue
        with contextlib.suppress(OSError):  # a file system without links: it moves afterwards
            if other.is_file() or other.is_symlink():
                os.link(other, drafts / other.name, follow_symlinks=False)
            else:  # folders have no hard links: a symbolic link leads to it until it moves back
                (drafts / other.name).symlink_to(after / other.name, target_is_directory=True)
    try:
        drafts.chmod(target.stat().st_mode & 0o7777)
        exchange(drafts, target)
    except OSError:  # some file systems cannot
        for name in set(os.listdir(drafts)) - set(own_names):
            (drafts / name).unlink()
        return False
    _bring(drafts, target, own_names)
    return True


def _bring(old: Path, target: Path, own_names: Collection[str]) -> None:
    """Move the files of `old` whose names are not in `own_names` to `target`, unless `target` has files of these names.

    If the entry in `target` is a symbolic link to the file in `old`, the file replaces the link.
    """
    for other in old.iterdir():
        mine = target / other.name
        if other.name in own_names:
            continue
        if not os.path.lexists(mine):
            other.rename(mine)
        elif mine.is_symlink() and not other.is_symlink() and os.path.realpath(mine) == os.path.realpath(other):
            try:
                exchange(other, mine)
            except OSError:
                mine.unlink()
                other.rename(mine)


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two files or folders in one operation; raise an OSError if the system cannot."""
    libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    paths = os.fsencode(first), os.fsencode(second)
    if hasattr(libc, "renameat2"):  # Linux
        failed = libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE)
    elif hasattr(libc, "renamex_np"):  # macOS
        failed = libc.renamex_np(*paths, RENAME_EXCHANGE)
    else:
        raise OSError(errno.ENOSYS, "this system cannot exchange folders")
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(second))


def _move_each(drafts: Path, target: Path, own_names: Collection[str]) -> None:
    """Move the files of `drafts` to `target` one by one, and remove from `target` all other files named in `own_names`.

    If one of these operations fails, undo all, and raise its exception again.
    """
    kept = drafts.with_name("old")
    kept.mkdir()
    names = sorted(os.listdir(drafts))
    done: list[str] = []
    try:
        for name in sorted({*names, *own_names}):
            done.append(name)
            if os.path.lexists(target / name):
                os.rename(target / name, kept / name)
            if name in names:
                os.rename(drafts / name, target / name)
    except BaseException:
        for name in done:
            if os.path.lexists(kept / name):
                os.replace(kept / name, target / name)
            elif name in names and not os.path.lexists(drafts / name):
                (target / name).unlink(missing_ok=True)
        raise
