# cp, mv, rm, ln, readlink, realpath, install, mkdir, rmdir.
# needs: cp mv rm ln readlink realpath install cmp
set -euo pipefail
source "$CASES/../lib.sh"

mkdir -p src/a/b/c src/d
seq 1 20000 > src/a/numbers
printf 'secret\n' > src/a/b/secret && chmod 600 src/a/b/secret
printf '#!/bin/sh\necho ran "$0" "$@"\n' > src/run.sh && chmod 755 src/run.sh
head -c 3000000 /dev/zero | tr '\0' 'x' > src/d/big
ln src/a/numbers src/d/hard
ln -s ../a/numbers src/d/soft
ln -s "$WORK/src/a" src/absolute
ln -s missing src/dangling
touch -d '2003-03-03 03:03:03.123456789' src/a/numbers
touch -d "2004-04-04" src/a/b/secret src/a/b
touch -h -d '2002-02-02' src/d/soft

section cp
cp -a src copy-a
cp -r src copy-r
cp -rL src/d copy-L
cp -p src/a/numbers numbers-p
cp src/a/b/secret secret-plain
diff -r --no-dereference src copy-a; diff -r src/a copy-r/a && echo same
[ copy-a/d/hard -ef copy-a/a/numbers ] && echo linked
[ copy-r/d/hard -ef copy-r/a/numbers ] || echo not linked
stat -c '%n %Y %a %h' copy-a/a/numbers copy-a/a/b/secret numbers-p
cp -l src/a/numbers hard-by-cp && stat -c '%h' src/a/numbers
cp -s "$WORK/src/a/numbers" soft-by-cp && readlink soft-by-cp
cp --parents src/a/b/secret copy-r
cp -v src/a/numbers src/run.sh src/a/b/
cp -n src/run.sh src/a/numbers || true
cmp src/a/numbers numbers-p && echo not overwritten
cp -b --suffix=.old src/run.sh numbers-p && cmp numbers-p.old src/a/numbers && cmp numbers-p src/run.sh
cp -u src/a/numbers secret-plain
cp --sparse=always src/d/big big-sparse && cmp src/d/big big-sparse
cp --reflink=auto src/d/big big-reflink && cmp src/d/big big-reflink
cp --remove-destination src/run.sh soft-by-cp && [ ! -L soft-by-cp ]
cp /etc/passwd passwd-in && cmp /etc/passwd passwd-in && rm passwd-in
cp -rT src/d copy-T
fails cp src/d no-directory/x
fails cp src/d into
fails cp -r src src/a/inside
rm -rf src/a/inside
fails cp src/missing .
./src/run.sh 1 2
copy-a/run.sh three

section mv
mkdir m m/one m/two
echo 1 > m/one/f; echo 2 > m/two/f; echo 3 > m/g
mv m/g m/h && cat m/h
mv m/h m/one/ && cat m/one/h
mv m/one/f m/two/f && cat m/two/f
mv -n m/two/f m/one/h; cat m/one/h
mv -v m/two m/three
mv m/three m/one/
plain_ls -lR m
fails mv m m/one
mv -T m/one m/renamed
fails mv m/missing m/other
mkdir m/full m/full/three && echo x > m/full/three/x
fails mv m/renamed/three m/full
mkdir m/emptied && mv -T m/full m/emptied && plain_ls m/emptied
mv -b m/renamed/h m/renamed/three/f && ls m/renamed/three
mv src/d/soft m/soft && readlink m/soft
mv -t m numbers-p numbers-p.old
cd m; mv renamed ../up-here; cd ..; ls up-here
for i in 1 2 3 4 5 6 7 8; do mv secret-plain secret-$i && mv secret-$i secret-plain; done

section rm
rm m/numbers-p
fails rm m/numbers-p
rm -f m/numbers-p m/never
fails rm m
fails rmdir m
mkdir -p deep/1/2/3/4/5/6/7/8/9 && rmdir -p deep/1/2/3/4/5/6/7/8/9 && [ ! -e deep ]
rm -rv copy-T | sort
rm -rf copy-r copy-L
rm -d "$(mkdir empty-d && echo empty-d)"
fails rmdir copy-a/run.sh
unlink hard-by-cp && stat -c %h src/a/numbers
fails mkdir src
fails mkdir no/such/dir
mkdir -p src/a/b/c/e/f && mkdir -m 711 moded && plain_stat moded
plain_ls -a

section ln
ln src/run.sh run-hard && ./run-hard x
link src/run.sh run-link && stat -c %h run-link
fails ln src/run.sh run-hard
fails ln src dir-hard
ln -f src/a/numbers run-hard && head -n 2 run-hard
ln -s src/run.sh s1 && ln -s s1 s2 && ln -s s2 s3 && ./s3 chain
ln -sf src/a s1 && ls s1 && ls s3
ln -sfn src/d s1 && readlink s1
ln -sr src/a/b/secret up-here/relative && readlink up-here/relative && cat up-here/relative
ln -s loop2 loop1; ln -s loop1 loop2
fails cat loop1
readlink -f s3
readlink -f src/absolute/b/../numbers
readlink -f not/there || echo "no"
readlink -e src/dangling || echo "dangling"
readlink -m not/there/at/all
fails readlink src/run.sh
realpath s3 src/a/../d/./big .
realpath --relative-to=src/d src/a/b/c
realpath -s s3
(cd src/absolute && pwd && pwd -P && /bin/pwd)
echo through > src/absolute/by-link && cat src/a/by-link
rm loop1 loop2

section install
install -m 640 src/a/numbers installed
install -D -m 755 src/run.sh prefix/usr/bin/run
install -d prefix/etc prefix/var/lib -m 700
install -t prefix/etc -m 444 src/a/b/secret src/run.sh
install -p -m 600 src/a/numbers prefix/var/old && stat -c '%Y %a' prefix/var/old
install -m 644 src/run.sh installed && cmp installed src/run.sh
prefix/usr/bin/run installed
plain_ls -lR prefix
