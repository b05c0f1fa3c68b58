# needs: setsid
# media: memory
# Programs that leave the terminal or the view of files in which they were started: tmux, screen, containers (bubblewrap, mount
# namespaces), as far as they are installed and allowed here. Daemons that close everything are in c-robust.
source "$CASES/../lib.sh"
wait_for() { for _ in $(seq 100); do [ -s "$1" ] && return 0; sleep 0.1; done; echo "no $1"; return 1; }
echo inside > file
setsid -f bash -c 'sleep 0.1; cat file > left; pwd >> left; mv left session'; wait_for session; sed "s|$WORK|WORK|" session
sockets=$(mktemp -d "$OUTER/sXXXX"); chmod 700 "$sockets"
if type -P tmux > /dev/null; then
  echo "tmux is here" >&2
  tmux -S "$sockets/t" -f /dev/null new-session -d -x 80 -y 24 "cat file > t1; echo \$PWD >> t1; echo from tmux >> t1; mv t1 tmux1; sleep 5"
  wait_for tmux1; sed "s|$WORK|WORK|" tmux1 >&2
  tmux -S "$sockets/t" new-window "echo again > t2; mv t2 tmux2"; wait_for tmux2; cat tmux2 >&2; tmux -S "$sockets/t" kill-server
  rm tmux1 tmux2
fi
if type -P screen > /dev/null; then
  echo "screen is here" >&2
  SCREENDIR=$sockets screen -dmS case bash -c 'cat file > s1; pwd >> s1; mv s1 screen1'; wait_for screen1; sed "s|$WORK|WORK|" screen1 >&2; rm screen1
fi
# By preload, the prefix is seen wherever the library is; through a mount, where that is bound to.
if unshare -m true 2> /dev/null; then
  echo "mount namespaces are here" >&2
  unshare -m bash -c 'cat file; echo written > unshared' >&2; cat unshared >&2; rm unshared
  unshare -m bash -c "cat $WORK/file" >&2
fi
if type -P bwrap > /dev/null && bwrap --dev-bind / / true 2> /dev/null; then
  echo "bubblewrap is here" >&2
  bwrap --dev-bind / / bash -c "cat $WORK/file; echo written > $WORK/contained" >&2; cat contained >&2; rm contained
  if [ -z "${FOREBAY_DIR:-}" ]; then
    bwrap --ro-bind / / --tmpfs /mnt --bind "$WORK" /mnt bash -c 'cat /mnt/file; echo bound > /mnt/contained; ls /mnt' >&2; cat contained >&2; rm contained
  fi
fi
rm -rf "$sockets"; ls
