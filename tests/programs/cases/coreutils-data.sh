# Programs that read and write data: dd, head, tail, sort, split, sha256sum, tee, ...
# needs: dd sort split sha256sum tee comm join cut wc od shuf paste uniq tr tac nl fold cksum
set -euo pipefail
source "$CASES/../lib.sh"

seq 1 200000 > numbers
noise() { awk -v n="$1" 'BEGIN{x=12345; for(i=0;i<n;i++){x=(x*1103515245+12345)%2147483648; printf "%d\n", x}}'; }
noise 200000 > noise

section dd
dd if=numbers of=dd1 bs=4096 status=none && cmp numbers dd1
dd if=numbers of=dd2 bs=1000 skip=3 count=5 status=none && sha256sum dd2
dd if=/dev/zero of=dd3 bs=1k count=64 status=none
printf 'MIDDLE' | dd of=dd3 bs=1 seek=30000 conv=notrunc status=none && sha256sum dd3
printf 'CUT' | dd of=dd3 bs=1 seek=40000 status=none && stat -c %s dd3
printf 'end' | dd of=dd3 oflag=append conv=notrunc status=none && tail -c 6 dd3 && echo
dd if=numbers of=dd4 bs=64k iflag=fullblock oflag=dsync conv=fsync status=none && cmp numbers dd4
dd if=dd3 bs=100 count=1 skip=300 status=none | tr -d '\0'; echo
dd if=numbers of=dd5 bs=1M seek=2 status=none && stat -c %s dd5
dd if=numbers of=dd6 bs=512 conv=sparse,ucase status=none && cmp numbers dd6
dd if=numbers of=dd7 conv=excl status=none
fails dd if=numbers of=dd7 conv=excl status=none
fails dd if=missing of=dd8 status=none
fails dd if=numbers of=nocreat conv=nocreat status=none
dd if=numbers of=dd9 bs=333 count=10 seek=7 skip=9 iflag=skip_bytes oflag=seek_bytes status=none && sha256sum dd9
sync dd9 && sync -d dd9 && echo synced

section parts
head -n 3 numbers; head -c 10 numbers; head -n -199998 numbers
tail -n 3 numbers; tail -c 10 numbers; tail -n +199999 numbers
(head -n 1 > /dev/null; head -n 1) < numbers
tac numbers | sed -n 1,2p
wc numbers noise; wc -l < numbers; wc -c numbers
nl numbers | sed -n 2p; fold -w 3 noise | wc -l; cksum numbers; sum numbers
cut -c1-3 numbers | sort -u | wc -l

section sort
sort -n noise > sorted; sort -c -n sorted && echo ordered
sort -T . -S 200k --parallel=2 noise > sorted-lex; sha256sum sorted sorted-lex
sort -rn noise | sed -n 1,2p
sort -n -o noise2 noise; sort -n -o noise2 noise2; cmp sorted noise2
sort -m -n sorted noise2 | wc -l
sort -u -k1.1,1.2 noise | wc -l
fails sort -c -n noise | tail -n 1

section split
split -l 30000 -d numbers part-; ls part-*; cat part-* | cmp - numbers && echo joined
split -b 250k numbers bytes-; ls bytes-*; cat bytes-* | sha256sum; rm bytes-*
split -n l/4 numbers chunk-; cat chunk-* | cmp - numbers; wc -l chunk-*; rm chunk-*
csplit -s -f cs- noise 50000 100000; wc -l cs-*; rm cs-*

section checksums
sha256sum part-* > SUMS && sha256sum -c SUMS
echo damage >> part-03
fails sha256sum -c --quiet SUMS
md5sum numbers noise > MD5 && md5sum -c MD5; b2sum numbers; sha1sum numbers

section tee
seq 5 | tee t1 t2 | tail -n 1; cmp t1 t2
seq 6 9 | tee -a t1 > /dev/null; cat t1
seq 3 | tee >(sort -r > t3) > /dev/null; for i in $(seq 100); do [ "$(wc -l < t3)" = 3 ] && break; sleep 0.05; done; cat t3

section columns
seq 1 2 20 | sort > odd; seq 1 3 20 | sort > third
comm odd third; comm -12 odd third
awk '{print $1, "o" $1}' odd > jo; awk '{print $1, "t" $1}' third > jt
join jo jt; join -a1 -e none -o 0,1.2,2.2 jo jt
paste odd third | sed -n 1,3p; paste -sd, odd; paste -d: - - < odd
cut -d' ' -f2 jo | sed -n 1,2p; uniq -c <(cut -c1 odd)
expand <(printf 'a\tb\n') > ex && unexpand -a ex | od -c; tr a-j 0-9 < ex
od -A d -t x1z -N 40 numbers; od -t d4 -j 100 -N 16 noise
if type xxd > /dev/null 2>&1; then
  xxd -l 32 numbers > x; xxd -r x | cmp - <(head -c 32 numbers); xxd -p -l 10 noise > /dev/null
fi
shuf --random-source=noise numbers | sha256sum
shuf --random-source=noise -n 3 -i 1-1000
base64 numbers > b64; base64 -d b64 | cmp - numbers && echo base64
tsort <(printf 'a b\nb c\n'); seq -s+ 5; numfmt --to=iec 123456; fmt -w 20 odd; pr -t -3 odd
comm -3 <(sort numbers) <(sort numbers); cmp -s numbers noise || echo differ
fails diff <(head -n 3 numbers) <(head -n 4 numbers) | grep -v /dev/fd
diff -u --label a --label b t1 t2 || true
{ yes line || true; } | head -n 50000 > yes; sha256sum yes
cat numbers - numbers <<< between | wc -l
cat < numbers > same && cmp same numbers
fails cat numbers . | tail -n 2
