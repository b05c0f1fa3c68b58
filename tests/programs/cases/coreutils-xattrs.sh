# Attributes in the user. namespace, by the attr tools, by cp and by python.
# needs: setfattr getfattr python3
# needs-xattr
set -euo pipefail
source "$CASES/../lib.sh"

touch f; mkdir d
setfattr -n user.colour -v blue f
setfattr -n user.empty f
setfattr -n user.binary -v 0x00ff10 f
setfattr -n user.of-directory -v yes d
getfattr -d f | sort
getfattr -d -e hex f | sort
getfattr --only-values -n user.colour f; echo
setfattr -n user.colour -v 'a much longer value than before' f
getfattr --only-values -n user.colour f; echo
setfattr -x user.empty f
getfattr -d f d | sort
fails getfattr -n user.missing f
fails setfattr -x user.missing f
cp -a f copy; getfattr -d copy | sort
cp f bare; getfattr -d bare
mv f moved; getfattr -d moved | sort
ln moved hard; setfattr -n user.via-link -v 1 hard; getfattr -d moved | sort
ln -s moved soft; getfattr --only-values -n user.via-link soft; echo
mv d e; getfattr -d e
python3 - <<'PY'
import errno, os
os.setxattr("moved", "user.py", b"x" * 1500)
print(sorted(os.listxattr("moved")), len(os.getxattr("moved", "user.py")))
os.setxattr("moved", "user.py", b"y", os.XATTR_REPLACE)
print(os.getxattr("moved", "user.py"))
for name, flag in (("user.py", os.XATTR_CREATE), ("user.none", os.XATTR_REPLACE)):
    try:
        os.setxattr("moved", name, b"z", flag)
        print("no error")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
fd = os.open("moved", os.O_RDWR)
os.setxattr(fd, "user.fd", b"by descriptor")
print(os.getxattr("moved", "user.fd"), os.getxattr(fd, "user.fd"))
os.removexattr(fd, "user.fd")
os.close(fd)
try:
    os.getxattr("moved", "user.fd")
except OSError as e:
    print(errno.errorcode[e.errno])
PY
