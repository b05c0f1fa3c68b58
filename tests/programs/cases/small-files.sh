# Two thousand small files in twenty directories.
# needs: python3 xargs find sha256sum
set -euo pipefail
source "$CASES/../lib.sh"

for d in $(seq -w 1 20); do
  mkdir dir-$d
  if [ $((10#$d % 2)) = 0 ]; then for f in $(seq -w 1 100); do echo "file $f of directory $d" > dir-$d/f$f.txt; done; fi
done
python3 - <<'PY'
import os
for d in range(1, 21, 2):
    for f in range(1, 101):
        with open("dir-%02d/f%03d.txt" % (d, f), "w") as out:
            out.write("file %03d of directory %02d\n" % (f, d))
PY
find . -type f | wc -l
find . -type f -print0 | sort -z | xargs -0 sha256sum > "$OUTER/sums"; sha256sum < "$OUTER/sums"
sha256sum -c --quiet "$OUTER/sums" && echo all there
for d in dir-*; do ls $d | wc -l; done | sort | uniq -c | awk '{$1=$1; print}'
cat dir-*/f050.txt
python3 - <<'PY'
import os
n = 0
for top, _, files in os.walk("."):
    for name in files:
        path = os.path.join(top, name)
        os.rename(path, path[:-4] + ".renamed")
        n += 1
print(n)
PY
find . -name '*.txt' | wc -l; find . -name '*.renamed' | wc -l
sed 's/\.txt$/.renamed/' "$OUTER/sums" | sha256sum -c --quiet && echo same content
for i in 1 2 3 4; do (for d in $(seq -w $i 4 20); do touch -d 2001-01-01 dir-$d/*; chmod 600 dir-$d/*; done) & done; wait
find . -type f -perm 600 ! -newermt 2001-01-02 | wc -l
rm -f dir-*/f*[13579].renamed; find . -type f | wc -l
mkdir all; for d in dir-*; do for f in $d/*; do echo "$f"; done; done | while read -r f; do ln "$f" "all/${f//\//-}"; done
ls all | wc -l; find all -links 2 | wc -l; cat all/* | sha256sum
grep -l 'file 044' -r . | sort | wc -l
rm -rf dir-0*; find all -type f -links 1 | wc -l; find . -type f | wc -l
mv dir-10 moved; ls moved | wc -l; cp -r all all-again; diff -r all all-again && rm -r all-again && ls
