# One tree through cp -a, tar, cpio-like pipes, find with many processes, du, diff.
# needs: tar find xargs du diff cmp
set -euo pipefail
source "$CASES/../lib.sh"
for d in $(seq 30); do mkdir -p tree/$((d % 5))/$d; for i in $(seq 20); do seq $((d * i)) > tree/$((d % 5))/$d/f$i; done; done
ln -s ../1 tree/0/link; ln tree/1/1/f1 tree/2/hard; truncate -s 3M tree/sparse; printf x | dd of=tree/sparse bs=1 seek=2000000 conv=notrunc status=none; chmod 700 tree/3; chmod 444 tree/4/4/f4; mkfifo tree/pipe
find tree -exec touch -h -d '2012-03-04 05:06:07.123456789' {} +
cp -a tree copy; diff -r --no-dereference tree copy > /dev/null 2>&1 || [ $? -le 2 ]; (cd tree; find . -type f -print0 | sort -z | xargs -0 -P 2 -n 50 sha256sum) | sort > sums; (cd copy; sha256sum -c --quiet ../sums && echo copied)
find copy -printf '%P %y %m %T@ %s\n' ! -type d | grep -v ' d ' | sort > a; find tree -printf '%P %y %m %T@ %s\n' | grep -v ' d ' | sort > b; cmp a b && echo same attributes; [ copy/1/1/f1 -ef copy/2/hard ] && echo linked
tar --format=posix -cf - tree | (mkdir untar; tar xpf - -C untar); find untar/tree -printf '%P %y %m %T@ %s\n' | grep -v ' d ' | sort | cmp - b && echo untarred
tar cf t.tar tree; tar df t.tar && echo no difference; echo more >> tree/0/5/f5; tar df t.tar > differs 2>&1 || cat differs
diff -rq --no-dereference tree copy | grep -v fifo || true; { diff -u tree/0/5/f5 copy/0/5/f5 || true; } | tail -n 2; cp -au tree/. copy/; diff -rq --no-dereference tree copy | grep -v fifo || echo updated
du -s --apparent-size -B1 tree/sparse tree/1/1/f1; [ "$(du -s -B1 tree/sparse | cut -f1)" -lt 3000000 ] && echo sparse; du -a tree | wc -l; du -sc --inodes tree copy | cut -f1
find tree -type f -print0 | xargs -0 -P 4 -n 25 sh -c 'for f; do cp -p "$f" "$f.copy" && mv "$f.copy" "$f.moved"; done' _; find tree -name '*.moved' | wc -l
find tree -name '*.moved' -print0 | xargs -0 -P 4 -n 40 rm; find tree -type f | wc -l
for i in 1 2 3; do ( cp -a copy "many$i" && rm -rf "many$i" ) & done; for i in $(seq 20); do find . -maxdepth 2 > /dev/null 2>&1 || true; done; wait; ls
cp -al copy links; find links -type f -links +1 | wc -l; rm -rf copy; find links -type f -links 1 | wc -l; cp --sparse=always links/sparse again; cmp links/sparse again && echo same
find links -depth -type d -empty -print; find links -type f -delete; find links -depth -type d -empty -delete; find links | sort; rm -rf untar t.tar
