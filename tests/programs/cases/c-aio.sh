# The kernel's asynchronous I/O: by system calls, and as fio uses it by libaio.
# fio's state of verification isn't saved: it has the order in which the last writes were completed.
# needs: cc fio
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/aio.c" -lpthread
./program
for direct in 0 1; do
  for rw in randrw write; do
    fio --name=job --filename=data --size=4m --bs=4k --rw=$rw --ioengine=libaio --iodepth=16 --direct=$direct \
      --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fsync=50 --randseed=7 --minimal > minimal 2> messages || { cat messages; exit 1; }
    echo "direct=$direct $rw: errors $(cut -d';' -f5 minimal), $(cat messages)"
  done
done
cksum < data | cut -d' ' -f2
rm -f program minimal messages data
