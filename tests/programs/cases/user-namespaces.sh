# needs: unshare
# media: memory
# In a user namespace ids are those that the kernel would use: unmapped ones can't be given to files
# and are shown as 65534, capabilities count for mapped files alone, new files belong to the user.
source "$CASES/../lib.sh"
# As the kernel does it, wherever user namespaces may be made.
if ! unshare -Ur true 2>/dev/null; then echo "no user namespaces"; exit 0; fi

# One's own ids by name, others by number: the runs' users are the same, but the output should say it.
owner() { stat -c '%n %u %g %a' "$@" | sed "s/ $CASE_UID / me /; s/ $(id -g) / mine /"; }

section "mapped to root"
mkdir outer; echo before > outer/file; chmod 600 outer/file
# Inherited: the inner shell has no functions.
unshare -Ur bash -c '
  umask 077; mkdir d; echo secret > d/s
  stat -c "%n %u %g %a" d d/s outer/file
  chown 77:77 d/s 2>/dev/null && echo "chown to an unmapped id worked"
  chown 0:0 d/s && echo "chown to a mapped id worked"
  cat outer/file; echo inside >> outer/file; chmod 640 outer/file
  cp -p outer/file d/copy; ln -s file outer/link; mknod d/fifo p; touch -d @1000 d/s
  mkdir d/deep; cd d/deep; echo relative > r; (echo child > c); sh -c "echo executed > e"
' || echo failed
owner d d/s d/copy d/fifo outer/file outer/link d/deep d/deep/*
cat d/s outer/file d/deep/r d/deep/c d/deep/e
rm -r d && echo removed

section "not mapped"
mkdir u
unshare -U bash -c '
  umask 022; echo new > u/f; mkdir u/d; stat -c "%n %u %g %a" u u/f u/d
  cat u/f; echo more >> u/f; chmod 600 u/f; mv u/f u/g
  chown 0:0 u/g 2>/dev/null && echo "chown worked"
  true
' || echo failed
owner u/g u/d; cat u/g; rm -r u

section "mapped later, by the process that made the namespace"
mkdir later
python3 - <<'PY' || echo failed
import ctypes, os
uid, gid = os.getuid(), os.getgid()
libc = ctypes.CDLL(None, use_errno=True)
open("later/before", "w").close()
assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
print("unmapped:", os.stat("later/before").st_uid)
open("later/between", "w").close()
for name, text in (("setgroups", "deny"), ("uid_map", f"5 {uid} 1"), ("gid_map", f"6 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as f:
        f.write(text)
s = os.stat("later/between")
print("mapped:", s.st_uid, s.st_gid, os.getuid())
open("later/after", "w").close()
try:
    os.chown("later/after", 0, 0)
except OSError as e:
    print("chown:", e.strerror)
os.chown("later/after", 5, 6)
child = os.fork()
if child == 0:
    print("child:", os.stat("later/after").st_uid, flush=True)
    os._exit(0)
os.waitpid(child, 0)
PY
owner later/*; rm -r later

section "one inside the other"
unshare -Ur unshare -Ur bash -c 'umask 022; echo inner > i; stat -c "%n %u %g" i; chown 1 i 2>/dev/null && echo "chown worked"; true' || echo failed
owner i; rm i

if [ "$CASE_UID" = 0 ]; then
  section "capabilities count for mapped files alone"
  umask 022; mkdir p; echo other > p/of-other; chown 1000:1000 p/of-other; chmod 600 p/of-other
  echo mine > p/mine; chmod 000 p/mine
  unshare -Ur bash -c '
    stat -c "%n %u %g %a" p/*; cat p/mine
    cat p/of-other 2>/dev/null || echo "not readable"
    chmod 666 p/of-other 2>/dev/null || echo "no chmod"
    chown 0 p/of-other 2>/dev/null || echo "no chown"
    rm -f p/of-other && echo "removed"
  '
  rm -r p
fi
