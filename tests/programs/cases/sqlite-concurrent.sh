# One database written by two processes at once, with each kind of journal.
# needs: sqlite3 python3
# timeout: 90
# ignore: *.db *.db-wal *.db-shm *.db-journal
set -euo pipefail
cat > writer.py <<'PY'
import os, sqlite3, sys
path, who, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
c = sqlite3.connect(path, timeout=60, isolation_level=None)
for i in range(count):
    c.execute("begin immediate")
    n, = c.execute("select n from counter").fetchone()
    c.execute("insert into t values(?, ?, ?, ?)", (who, i, n, "x" * (i * 37 % 900)))
    c.execute("update counter set n = ?", (n + 1,))
    if i % 7 == 3: c.execute("rollback")
    else: c.execute("commit")
if who == 2: os.kill(os.getpid(), 9)  # not closed
c.close()
PY
for mode in wal delete truncate persist memory; do
  echo "== $mode"
  sqlite3 $mode.db "pragma journal_mode=$mode; create table t(who, i, n, text); create table counter(n); insert into counter values(0);"
  sqlite3 $mode.db "pragma wal_autocheckpoint=50" > /dev/null
  python3 writer.py $mode.db 1 120 & one=$!; ( exec python3 writer.py $mode.db 2 120 ) 2> /dev/null & two=$!
  # A reader never sees a transaction in half.
  python3 - $mode.db <<'PY'
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], timeout=60)
while True:
    rows, n = c.execute("select (select count(*) from t), (select n from counter)").fetchone()
    if rows != n: print("rows", rows, "counted", n); break
    if n >= 206: break
print("read")
PY
  wait $one; wait $two 2> /dev/null || echo "killed: $?"
  sqlite3 $mode.db "select who, count(*), sum(length(text)) from t group by who; select n, (select count(distinct n) from t) from counter; pragma integrity_check;"
done
echo "== changes of mode, large transactions"
sqlite3 wal.db "pragma wal_checkpoint(truncate); pragma journal_mode=delete; pragma journal_mode;" ; ls wal.db*
sqlite3 big.db "pragma journal_mode=wal; pragma cache_size=50; create table b(id integer primary key, data blob);
  with recursive s(i) as (select 1 union all select i + 1 from s where i < 3000) insert into b select i, randomblob(1000) from s;
  update b set data = zeroblob(1500) where id % 3; delete from b where id % 5 = 0; vacuum; select count(*), sum(length(data)) from b; pragma integrity_check;"
sqlite3 big.db "pragma mmap_size=100000000; select sum(length(data)) from b; insert into b(data) values('mapped'); select count(*) from b; pragma quick_check;"
