# A database in a file: journals, locks, rollback, dump and restore.
# needs: sqlite3 python3
# ignore: db
set -euo pipefail
q() { sqlite3 -bail db "$@"; }
q "create table t(id integer primary key, word text, n real); create index w on t(word);"
{ echo "begin;"; for i in $(seq 2000); do echo "insert into t(word, n) values('word$((i % 97))', $i / 7.0);"; done; echo "commit;"; } | q
q "select count(*), round(sum(n), 3), count(distinct word) from t;"
for i in 1 2 3 4 5; do q "insert into t(word, n) values('single', $i);"; done; ls
q "begin; delete from t; select count(*) from t; rollback; select count(*) from t;"
for i in 1 2 3; do ( for j in $(seq 8); do sqlite3 -cmd ".timeout 20000" db "insert into t(word, n) values('job$i', $j);"; done ) & done; wait
q "select word, count(*) from t where word like 'job%' group by word order by word; pragma integrity_check;"
q "delete from t where word like 'job%'; select count(*) from t;" # which came first is chance
q "update t set word = upper(word) where id % 2; vacuum; pragma integrity_check;"
q ".dump" > dump.sql; sha256sum dump.sql; sqlite3 copy < dump.sql; sqlite3 copy ".dump" | cmp - dump.sql && echo restored
q ".backup saved"; sqlite3 saved "select count(*) from t"; q -csv "select * from t where id < 5" > out.csv; cat out.csv
q "pragma journal_mode=truncate; insert into t(word) values('x'); pragma journal_mode=persist; insert into t(word) values('y');"; q "pragma journal_mode=delete;" ; ls
python3 - <<'PY'
import sqlite3
c = sqlite3.connect("db"); c.execute("insert into t(word) values('uncommitted')"); d = sqlite3.connect("db", timeout=0.05)
try: d.execute("insert into t(word) values('blocked')")
except sqlite3.OperationalError as e: print(e)
print(d.execute("select count(*) from t where word = 'uncommitted'").fetchone()); c.rollback(); c.close(); d.execute("delete from t where word = 'x'"); d.commit(); d.close()
PY
q "select count(*) from t; attach 'other' as o; create table o.z as select * from t limit 3; select count(*) from o.z;"; rm copy saved
