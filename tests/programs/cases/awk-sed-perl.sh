# Editing in place and writing several files from one program.
# needs: awk sed perl
set -euo pipefail
source "$CASES/../lib.sh"

seq 1 5000 | awk '{print $1, $1 * $1 % 97, "word" $1 % 13}' > table
cp table t1; cp table t2; cp table t3; chmod 640 t1

section sed
sed -i 's/word/WORD/; 10d' t1; sed -n '9,11p' t1; stat -c '%a %h' t1
sed -i.bak -e '1i\first' -e '$a\last' t1; sed -n 1p t1; tail -n 1 t1; cmp t1.bak t1 | cut -d, -f1 || true
sed -n '/WORD7$/w sevens' t1; wc -l sevens; sed -s -n '$p' t1 t2
sed -i -s '1d' t2 t3; wc -l t2 t3 | tail -n 1; ln -s t2 soft; sed -i --follow-symlinks '1d' soft; [ -L soft ] && wc -l t2
sed -i '1d' soft; [ -L soft ] || echo no longer a link; sed '2r sevens' t1 | wc -l; sed 'R t2' t3 | sha256sum; sed -i 's/x/y/' t1 t2 t3; sed -n '5{p;q}' < t1
fails sed -i s/a/b/ missing; fails sed -n p . ; ls sed* 2> /dev/null || echo no temporary files

section awk
awk '{print > ("by-" $3)}' table; ls by-*; wc -l by-* | tail -n 1; cat by-word3 | sha256sum
awk '{print $1 >> "appended"} END{close("appended"); while ((getline l < "appended") > 0) n++; print n}' table
awk '{print $2 | "sort -n | uniq -c > counted"}' table; sed -n 1,3p counted
awk 'NR==FNR{a[$1]=$2; next} $1 in a{s+=a[$1]} END{print s}' table t2
awk 'BEGIN{while (("ls by-*" | getline f) > 0) {n++; system("test -s " f)} print n}'
awk '{print; fflush()}' table > flushed; cmp table flushed && echo flushed
awk -v OFS=, '{$1=$1}1' table > csv; sed -n 1,2p csv; awk 'END{print FILENAME, NR}' t1 t2 - < t3
awk 'BEGIN{printf "no newline" > "nn"; close("nn"); getline x < "nn"; print x; print (getline y < "missing")}'
awk 'FNR==1{print FILENAME}' by-*; awk '{f="split-" int(NR/1000); print > f; if (NR%1000==999) close(f)}' table; ls split-*

section perl
perl -i -pe 's/(\d+)/$1+1/e' t3; sed -n 1,2p t3; perl -i.orig -ne 'print unless /word1\b/' t3; ls t3*; wc -l t3
perl -e 'open my $f, "+<", "table" or die; seek $f, 100, 0; read $f, my $b, 10; print tell($f), "\n"; seek $f, 0, 2; print tell($f), "\n"; print $f "tail\n"; close $f'; tail -n 1 table
perl -e 'open F, ">>", "log"; print F "a"; open G, ">>", "log"; print G "b"; close G; close F; print -s "log", "\n"'; cat log; echo
perl -e 'mkdir "pd" or die; chdir "pd" or die; open F, ">", "x"; print F "y"; close F; rename "x", "z"; symlink "z", "s"; link "z", "l"; opendir D, "."; print join(" ", sort readdir D), "\n"; print readlink("s"), " ", (stat "l")[3], "\n"'
perl -e 'truncate "csv", 20; print -s "csv", "\n"; utime 1e9, 1e9, "csv"; print +(stat "csv")[9], "\n"; chmod 0600, "csv"; printf "%o\n", (stat "csv")[2] & 07777; unlink "csv"; print -e "csv" ? "there" : "gone", "\n"'
perl -e 'for (qw(missing/x . table/x)) { open F, ">", $_ or print "$_: $!\n" } rmdir "pd" or print "$!\n"; mkdir "pd" or print "$!\n"; rename "missing", "x" or print "$!\n"'
perl -MFile::Copy -MFile::Find -MFile::Path -MFile::Temp=tempfile -e 'copy "t1", "fc"; move "fc", "fm"; print -s "fm", "\n"; File::Path::make_path("p/q/r"); my ($h, $n) = tempfile(DIR => "p", UNLINK => 1); print $h "x"; find({wanted => sub { $c++ }, no_chdir => 1}, "."); print "$c\n"; File::Path::remove_tree("p"); print -d "p" ? 1 : 0, "\n"'
perl -e 'open F, "<", "t1"; @s = stat F; @t = stat "t1"; print "@s[0,1,2,3,7]" eq "@t[0,1,2,3,7]" ? "same\n" : "differ\n"; while (<F>) { $n++ } print "$n\n"; print eof(F) ? "eof\n" : "no\n"'
perl -e 'open O, ">&", \*STDOUT; open STDOUT, ">", "redirected"; print "hidden\n"; system "echo from child"; close STDOUT; open STDOUT, ">&", \*O; print "shown\n"'; cat redirected
perl -e 'open P, "|-", "cat > piped"; print P "p$_\n" for 1..3; close P; open P, "-|", "cat piped"; print <P>; close P; unlink glob "by-*"; print scalar(my @l = glob "*"), "\n"'
perl -ne 'print "$ARGV:$.\n" if eof; close ARGV if eof' t1 t2 t3
