# Modes, owners, times, sizes.
# needs: chmod chown touch truncate stat cmp
set -euo pipefail
source "$CASES/../lib.sh"

section modes
touch f g; mkdir d d/e; touch d/e/x
for m in 0 400 644 755 4755 2755 1777 7777 600; do chmod $m f; stat -c '%a %A' f; done
chmod u=rwx,g=rx,o= f; stat -c %a f
chmod a+w,o-w f; stat -c %a f
chmod +x g; stat -c %a g
chmod --reference=f g; stat -c %a g
chmod -R u=rwX,go= d; plain_stat d d/e d/e/x
chmod 1777 d; plain_stat d
chmod 2750 d/e; plain_stat d/e; chmod 0755 d/e; chmod g-s d/e; plain_stat d/e
chmod -v 640 f
chmod -c 640 f
fails chmod 644 missing
chmod 500 d/e/x; [ -x d/e/x ] && echo executable
chmod 600 d/e/x; [ -x d/e/x ] || echo not executable
ln -s f link; chmod 604 link; stat -c %a f

section umask
(umask 027; touch u027; mkdir d027; stat -c %a u027 d027)
(umask 000; touch u000; mkdir d000; stat -c %a u000 d000)
(umask 077; echo x > u077; cp g g077; stat -c %a u077 g077)
(umask 022; mkdir -p p1/p2/p3; stat -c %a p1 p1/p2 p1/p2/p3)
mkdir -m 1770 sticky; stat -c %a sticky

section owners
if [ "$CASE_UID" = 0 ]; then
  touch o; chown 12:34 o; stat -c '%u %g' o
  chown 0 o; stat -c '%u %g' o
  chgrp 56 o; stat -c '%u %g' o
  chown -R 7:8 d; stat -c '%u %g' d d/e d/e/x
  ln -s o olink; chown -h 9:10 olink; stat -c '%u %g' olink o
  chown --reference=d o; stat -c '%u %g' o
  chown 11:12 olink; stat -c '%u %g' olink o
  cp -p o o2; stat -c '%u %g' o2
else
  chown "$(id -u)" f; chgrp "$(id -g)" f
  fails chown 0:0 f
fi
[ -O f ] && echo mine
# chown(-1, -1): no other owner, but a new change time, and no privileges.
touch n; chmod 6755 n; before=$(stat -c %z n); sleep 0.02; chown : n; stat -c %a n
[ "$before" != "$(stat -c %z n)" ] && echo a new change time
before=$(stat -c %z d); sleep 0.02; chown : d; [ "$before" != "$(stat -c %z d)" ] && echo of a directory, too

section times
touch -d '2001-02-03 04:05:06.789012345' f; stat -c '%X %Y %x %y' f
touch -d '1970-01-01 00:00:00' g; stat -c '%Y %y' g
touch -d '1965-05-05 05:05:05.5' g; stat -c '%Y %y' g
touch -d '2037-12-31 23:59:59' g; stat -c '%Y %y' g
touch -a -d '2011-11-11' f; stat -c '%X %Y' f
touch -m -d '2012-12-12' f; stat -c '%X %Y' f
touch -r f h; stat -c '%X %Y' h
touch -t 200506071234.56 h; stat -c '%X %Y' h
touch -h -d '2007-07-07' link; stat -c '%Y' link; stat -L -c '%Y' link
touch -d '2009-09-09' link; stat -c '%Y' link; stat -L -c '%Y' link
touch -d '2013-01-01' d; stat -c '%Y' d
touch d/new; [ "$(stat -c %Y d)" -gt 1500000000 ] && echo directory touched
touch -d '2013-01-01' d; chmod 700 d; stat -c '%Y' d
touch -c nothing-made; [ ! -e nothing-made ] && echo none
fails touch missing/file
touch f; [ "$(stat -c %Y f)" -ge "$(stat -c %Y h)" ] && echo newer
touch -d '2000-01-01' h; cat h; stat -c '%Y' h
echo more >> h; [ "$(stat -c %Y h)" -gt 1500000000 ] && echo written
touch -d '2000-01-01' h; truncate -s 1 h; [ "$(stat -c %Y h)" -gt 1500000000 ] && echo cut
touch -d '2000-01-01' h; mv h i; stat -c '%Y' i
now=$(date +%s); touch k; t=$(stat -c %Y k); [ $((t - now)) -le 2 ] && [ $((now - t)) -le 2 ] && echo clock
[ "$(stat -c %Z k)" -ge $((now - 2)) ] && echo change time
touch -d '2001-01-01' k; [ "$(stat -c %Z k)" -ge $((now - 2)) ] && echo change time is not set

section sizes
printf 'abcdefghij' > t
truncate -s 5 t; cat t; echo; stat -c %s t
truncate -s 100000 t; stat -c %s t; head -c 5 t; echo
tail -c +6 t | cmp - <(head -c 99995 /dev/zero) && echo zeros
truncate -s +10 t; stat -c %s t
truncate -s -10 t; stat -c %s t
truncate -s '<50' t; stat -c %s t
truncate -s '>60' t; stat -c %s t
truncate -s %64 t; stat -c %s t
truncate -r t t2; stat -c %s t2; sha256sum t t2
truncate -s 0 t; stat -c %s t; cat t
truncate -c -s 5 not-made; [ ! -e not-made ] && echo none
truncate -s 30M sparse; printf X | dd of=sparse bs=1 seek=20000000 conv=notrunc status=none
stat -c %s sparse; sha256sum sparse
printf Y >> sparse; stat -c %s sparse; tail -c 1 sparse; echo
truncate -s 20000001 sparse; tail -c 2 sparse | od -An -tx1
truncate -s 20000000 sparse; truncate -s 20000001 sparse; tail -c 1 sparse | od -An -tx1
head -c 200000 /dev/zero | tr '\0' q > cut; truncate -s 65537 cut; truncate -s 200000 cut; sha256sum cut
fails truncate -s 10 d
