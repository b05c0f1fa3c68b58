"""Converts meshes: `python -m forebay.mesh IN OUT`.

A path that begins with `forebay://` or ends with `.h5` is a mesh file of this package, in a pool or
outside. meshio reads and writes all others, by their endings.
"""

import argparse
import sys

from . import MeshError, from_meshio, read, to_meshio, write
from .model import Mesh


def _ours(path: str) -> bool:
    return path.startswith("forebay://") or path.endswith(".h5")


def _backend(path: str) -> str:
    return "iov" if path.startswith("forebay://") else "posix"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m forebay.mesh", description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="IN", help="forebay://POOL/path, a file .h5, or any that meshio reads")
    parser.add_argument("target", metavar="OUT", help="forebay://POOL/path, a file .h5, or any that meshio writes")
    options = parser.parse_args()
    try:
        source, target = options.source, options.target
        mesh = read(Mesh(), source, _backend(source)) if _ours(source) else from_meshio(source)
        if _ours(target):
            write(mesh, target, _backend(target))
        else:
            to_meshio(mesh).write(target)
    except (OSError, ValueError, ImportError) as e:
        sys.exit("%s: %s" % (type(e).__name__ if not isinstance(e, MeshError) else "error", e))


if __name__ == "__main__":
    main()
