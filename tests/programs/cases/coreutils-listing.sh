# ls, find, du and stat over a tree with files, links and old dates.
# needs: find du stat xargs awk
set -euo pipefail
source "$CASES/../lib.sh"

mkdir -p tree/{alpha,beta/deep/deeper,empty,.hidden}
printf 'hello\n' > tree/alpha/one.txt
head -c 20000 /dev/zero > tree/alpha/zeros.bin
seq 1 3000 > tree/beta/numbers
: > tree/beta/deep/nothing
printf 'dot' > tree/.hidden/.dotfile
printf 'a b' > 'tree/beta/name with spaces'
printf 'utf' > $'tree/beta/gr\xc3\xbc\xc3\x9fe'
ln tree/beta/numbers tree/alpha/numbers-again
ln -s ../beta/numbers tree/alpha/to-numbers
ln -s deep tree/beta/to-deep
ln -s nowhere tree/dangling
for i in $(seq -w 1 150); do echo "$i" > "tree/beta/deep/deeper/file-$i.dat"; done
chmod 600 tree/alpha/one.txt
chmod 750 tree/beta/deep
touch -d '2001-02-03 04:05:06' tree/alpha/one.txt
touch -d '2005-06-07 08:09:10' tree/alpha/zeros.bin
touch -d '2010-01-01' tree/beta/deep/nothing
touch -d '2015-01-01' tree/empty

section ls
plain_ls -la tree
plain_ls -laR tree
ls -R tree | wc -l
ls -1 tree/beta/deep/deeper | sed -n 1,3p
ls -A tree tree/alpha
ls -S tree/alpha
ls -1t tree/alpha/one.txt tree/alpha/zeros.bin tree/beta/deep/nothing
ls -1tr tree/alpha/one.txt tree/alpha/zeros.bin tree/beta/deep/nothing
ls -F tree/beta | cat
ls -d tree/*/
ls -b tree/beta
ls -l --time-style=full-iso tree/alpha/one.txt | awk '{print $1, $5, $6, $7, $NF}'
[ "$(ls -i tree/beta/numbers | cut -d' ' -f1)" = "$(ls -i tree/alpha/numbers-again | cut -d' ' -f1)" ]
[ "$(ls -i tree/beta/numbers | cut -d' ' -f1)" != "$(ls -i tree/alpha/one.txt | cut -d' ' -f1)" ]
fails ls tree/missing
fails ls tree/alpha/one.txt/below
ls -L tree/alpha/to-numbers
ls tree/beta/to-deep/

section find
find tree | sort
find tree -type d | sort
find tree -type l | sort
find tree -type f -size +10k | sort
find tree -type f -size -3c | sort | sed -n 1,5p
find tree -type f -empty | sort
find tree -type d -empty | sort
find tree -newer tree/alpha/zeros.bin ! -newer tree/empty -type f | sort
find tree ! -newermt 2006-01-01 -type f | sort
find tree -type f -links 2 | sort
find tree -samefile tree/beta/numbers | sort
find tree -perm 600 | sort
find tree -name '*.dat' -exec cat {} + | sort | sha256sum
find tree -name 'file-00*.dat' -exec sh -c 'echo "$1: $(cat "$1")"' _ {} \; | sort
(find tree -name 'one.txt' -execdir pwd -P \;) | sed "s,$WORK,@,"
find tree -mindepth 2 -maxdepth 2 | sort
find tree -name deep -prune -o -type f -print | sort
find -L tree -name nothing | sort
find tree -depth -name 'deep*' | cat
find tree -type f -printf '%y %s %m %n %P\n' | sort | sed -n 1,40p
find tree -type l -printf '%p -> %l\n' | sort
find tree -type f -print0 | sort -z | xargs -0 sha256sum
find . -path './tree/b*' -iname 'NUM*'

section du
find tree -type f ! -name '*.dat' -exec du -l --apparent-size -b {} + | sort
du -a --apparent-size -b tree/beta/deep/deeper/*.dat | awk '{n += $1} END {print n, NR}'
du --apparent-size -b -c tree/alpha/one.txt tree/alpha/zeros.bin
du -sL --apparent-size -b tree/alpha/to-numbers

section stat
stat -c '%n|%A|%a|%F|%h|%s|%Y|%y' tree/alpha/one.txt tree/alpha/zeros.bin
stat -c '%n|%A|%F|%s|%N' tree/alpha/to-numbers tree/dangling
stat -L -c '%n|%A|%F|%s' tree/alpha/to-numbers tree/beta/to-deep | sed 's/directory|.*/directory/'
stat -c '%U %G %u %g' tree/alpha/one.txt
stat -c '%n|%A|%a|%F|%Y' tree/empty
stat -c '%F' tree .
[ "$(stat -c %d tree)" = "$(stat -c %d tree/beta/deep)" ]
[ "$(stat -c %i tree)" != "$(stat -c %i tree/beta)" ]
[ "$(stat -c %i tree/alpha/..)" = "$(stat -c %i tree)" ]
fails stat tree/missing
fails stat -L tree/dangling

section delete
find tree -name 'file-1*.dat' -delete
find tree -name '*.dat' | wc -l
find tree/beta/deep/deeper -delete
plain_ls -la tree/beta/deep
