"""Files that users name to commands are read whole: a pipe is one, a device isn't, and their names
do nothing to a terminal."""
import os

from harness import case


@case(30)
def a_device_is_no_file_to_read(t):
    page = os.path.join(t.work, "page.html")
    with open(page, "w") as f:
        f.write("<p>")
    token = os.path.join(t.work, "token")
    with open(token, "w") as f:
        f.write("x" * 64)
    server = ("--server", "http://127.0.0.1:1")
    for words in (
        ("rules", "check", "/dev/zero"),
        ("up", "--pool", "p", "--rules", "/dev/zero"),
        ("report", "--compare", page, "/dev/zero"),
        ("report", "--compare", "/dev/zero", page),
        ("flow", "status", *server, "--token-file", "/dev/zero"),
        ("flow", "init", "w", "/dev/zero", *server, "--token-file", token),
    ):
        r = t.fb(*words, rc=None, timeout=3)
        t.ok(r.rc in (1, 2), r.told())
        if "page.html" not in words[2]:
            r.says("it is a device, not a regular file")
    t.nothing_left("commands that read nothing", processes=False)


@case(20)
def a_pipe_is_a_file_of_rules(t):
    script = '"$0" rules check <(printf \'[[rule]]\\npath = "/a/**"\\nmutability = "append"\\n\')'
    t.command(["bash", "-c", script, t.forebay])


@case(20)
def names_in_messages_do_nothing_to_a_terminal(t):
    t.up("p")
    r = t.fb("ls", "--pool", "p", "/no\x1b[31msuch\x07", rc=1)
    t.ok("\x1b" not in r.err and "\x07" not in r.err, repr(r.err))
    r.says(r"/no\?\[31msuch\?")
    t.fb("down", "--pool", "p")
