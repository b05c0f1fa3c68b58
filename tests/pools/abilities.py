"""What a file system can keep of a file, found out in a directory of it: network file systems lack some of it."""
import os
import tempfile

NANOSECONDS = 1123456789


def grain_of_times(directory):
    """The unit of its files' times. Nanoseconds."""
    with tempfile.NamedTemporaryFile(dir=directory) as f:
        os.utime(f.name, ns=(NANOSECONDS, NANOSECONDS))
        got = os.stat(f.name).st_mtime_ns
    return next(unit for unit in (1, 10, 100, 1000, 10**6, 10**9) if got == NANOSECONDS // unit * unit)


def has_attributes(directory):
    """Whether files can have attributes."""
    with tempfile.NamedTemporaryFile(dir=directory) as f:
        try:
            os.setxattr(f.name, "user.forebay", b"x")
            return True
        except OSError:
            return False


def has_times_of_links(directory):
    """Whether a symbolic link's times can be set."""
    with tempfile.TemporaryDirectory(dir=directory) as within:
        link = os.path.join(within, "link")
        os.symlink("nowhere", link)
        os.utime(link, (1, 1), follow_symlinks=False)
        return os.lstat(link).st_mtime == 1
