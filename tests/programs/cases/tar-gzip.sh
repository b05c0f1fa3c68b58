# Archives and compression.
# needs: tar gzip bzip2 xz zcat
set -euo pipefail
source "$CASES/../lib.sh"
# Which of two hard links comes first must not depend on the order of a directory.
export TAR_OPTIONS=--sort=name

mkdir -p src/a/b src/logs
seq 1 100000 > src/a/numbers; echo tiny > src/a/b/tiny; : > src/empty; mkdir src/empty-dir
for i in $(seq 30); do echo "log $i" > src/logs/$i.log; done
chmod 600 src/a/b/tiny; chmod 2710 src/a/b; chmod 555 src/empty
ln src/a/numbers src/hard; ln -s a/numbers src/soft; ln -s /etc/passwd src/absolute
truncate -s 8M src/sparse; printf data | dd of=src/sparse bs=1 seek=4000000 conv=notrunc status=none
long=src/$(printf 'd%.0s' {1..120}); mkdir "$long"; echo long > "$long/$(printf 'f%.0s' {1..150})"
find src ! -name sparse -exec touch -h -d '2006-07-08 09:10:11.25' {} +
touch -d '2006-07-08' src/sparse
find src -type d -exec touch -d '2003-01-01' {} +

section create and list
tar cf plain.tar src; tar tf plain.tar | sort
tar tvf plain.tar | awk '{print $1, $3, $NF}' | sort | sed -n 1,12p
tar czf c.tar.gz src; tar cjf c.tar.bz2 src; tar cJf c.tar.xz src; tar cSf sparse.tar src
for f in c.tar.gz c.tar.bz2 c.tar.xz sparse.tar; do tar tf $f | wc -l; done
[ "$(stat -c %s sparse.tar)" -lt "$(stat -c %s plain.tar)" ] && echo sparse is smaller
tar cf no-logs.tar --exclude='*.log' --exclude=sparse src; tar tf no-logs.tar | sort
tar df plain.tar && echo no difference

section extract
for f in plain.tar c.tar.gz c.tar.bz2 c.tar.xz sparse.tar; do
  mkdir x-$f; tar xpf $f -C x-$f
  diff -r --no-dereference src x-$f/src && echo "$f same"
  [ x-$f/src/hard -ef x-$f/src/a/numbers ] && echo linked
done
rm -rf x-c.tar.*
plain_stat x-plain.tar/src/a/b x-plain.tar/src/empty x-sparse.tar/src/sparse
stat -c '%y' x-plain.tar/src/a/numbers x-plain.tar/src/logs x-plain.tar/src/soft
(umask 077; mkdir masked; tar xf plain.tar -C masked --no-same-permissions; stat -c %a masked/src/a/numbers masked/src/logs); rm -rf masked
mkdir strip; tar xf plain.tar -C strip --strip-components=2 src/a src/logs/7.log; find strip | sort
tar xOf c.tar.gz src/a/b/tiny
mkdir wild; tar xf plain.tar -C wild --wildcards 'src/logs/1*'; find wild -type f | sort
echo changed > strip/tiny; fails tar xkf plain.tar -C strip --strip-components=3 src/a/b/tiny
cat strip/b/tiny
tar xf plain.tar -C wild --overwrite src/empty src/logs/1.log; tar xf plain.tar -C wild --unlink-first src/logs/1.log
tar cf - src | (mkdir piped; cd piped; tar xf -); diff -r --no-dereference src piped/src && echo piped; rm -rf piped

section change
cp plain.tar r.tar; echo appended > appended; tar rf r.tar appended; tar tf r.tar | tail -n 1
tar xOf r.tar appended; tar uf r.tar appended; tar tf r.tar | grep -c appended
tar f r.tar --delete src/a/numbers appended 2>&1; tar tf r.tar | grep -c numbers || true
tar Af r.tar no-logs.tar; tar tf r.tar | wc -l
tar cf rm.tar --remove-files appended && [ ! -e appended ] && echo removed
tar cf - -T <(find src -name '*.log' | sort) | tar tf - | wc -l
rm r.tar rm.tar

section compressors
cp src/a/numbers n
gzip -n n && [ ! -e n ] && gzip -t n.gz && gzip -l n.gz | awk 'NR==2{print $2}'
zcat n.gz | cmp - src/a/numbers; gunzip -k n.gz; cmp n src/a/numbers; gzip -c9n n > n9.gz; gunzip -c n9.gz | cmp - n
fails gzip n < /dev/null | sed 's/;.*//'
rm n.gz; stat -c '%Y' src/a/numbers; gzip -nN n; zgrep -c 77 n.gz; gunzip n.gz
bzip2 -k n; bzip2 -t n.bz2; bzcat n.bz2 | cmp - n; bzip2 -f n; bunzip2 n.bz2; sha256sum n
xz -k -T1 n; xz -t n.xz; xzcat n.xz | cmp - n; rm n; unxz n.xz; sha256sum n
head -c 100 src/a/numbers | gzip -n | cat - n9.gz | zcat | wc -c
head -c 2000 n9.gz > broken.gz; fails gzip -t broken.gz
xz -z -1 -T2 n; xz -l n.xz | wc -l; xz -d n.xz
touch -d '2008-08-08' n; gzip n; stat -c %Y n.gz; gunzip n.gz; stat -c %Y n
if type zip > /dev/null 2>&1 && type unzip > /dev/null 2>&1; then
  zip -qr z.zip src -x '*.log' '*sparse'; unzip -tq z.zip > /dev/null; mkdir uz; unzip -q z.zip -d uz
  cmp uz/src/a/numbers src/a/numbers; zip -qd z.zip src/empty; rm -rf uz z.zip
fi
# The archives hold the names of the owner and, in some formats, times of access.
rm -rf x-*; rm -f *.tar *.tar.*
