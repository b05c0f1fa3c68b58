//! Tests the command line as a whole: pools that start, stop, go stale and are reopened; programs
//! that run in them; exit codes and messages.

mod place;

use place::{Place, finish, kill, make_tree, manifest, noise};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

#[test]
fn wrong_usage_says_what_is_right() {
    let p = Place::new();
    for (args, words) in [
        (&["up", "--unknown"][..], &["--unknown", "--help"][..]),
        (&["frobnicate"], &["frobnicate"]),
        (&["up", "--media", "tape:1G"], &["memory:4G"]),
        (&["up", "--media", "memory:lots"], &["not a size"]),
        (&["up", "--mount", "/"], &["root directory", "/fb"]),
        (&["up", "--mount", "fb"], &["absolute"]),
        (&["up", "--mount", "/fb/../x"], &["absolute path without"]),
        (&["up", "--mount", "/usr"], &["hide /usr"]),
        (&["up", "--mount", "/dev/x"], &["hide"]),
        (&["up", "--pool", "a/b", "--media", "memory:8M"], &["name"]),
        (
            &["run", "--in", "a:b", "--", "true"],
            &["SRC:/DST", "--in ./case:/case"],
        ),
        (&["run", "--out", "a:b", "--", "true"], &["/SRC:DST"]),
        (&["run"], &["CMD"]),
        (&["exec"], &["CMD"]),
        (&["cat", "/x"], &["forebay exec -- cat ..."]),
    ] {
        p.forebay(args).expect(2).says(words);
    }
    assert!(p.forebay(&["pools"]).expect(0).err.contains("forebay up"));
}

#[test]
fn without_a_pool() {
    let p = Place::new();
    std::fs::write(p.at("f"), b"").unwrap();
    for args in [
        &["down"][..],
        &["exec", "--", "true"],
        &["stage", "in", "f", "/f"],
        &["ls"],
        &["df"],
        &["status"],
        &["up", "--reopen"],
    ] {
        p.forebay(args)
            .expect(3)
            .says(&["no pool 'default'", "forebay up"]);
    }
    p.forebay(&["down", "--force"])
        .expect(0)
        .says(&["nothing to remove"]);
}

#[test]
fn a_pool_from_up_to_down() {
    let p = Place::new();
    let said = p.forebay(&["up", "--media", "memory:64M"]).expect(0);
    for word in ["'default'", "memory:64M", "/fb", "ms"] {
        assert!(said.out.contains(word), "{}", said.out);
    }
    p.forebay(&["up"])
        .expect(1)
        .says(&["exists already", "--pool", "forebay down"]);
    std::fs::write(p.at("hello"), b"hello\n").unwrap();
    p.forebay(&["stage", "in", "hello", "/d/hello"]).expect(0);
    for path in ["/d/hello", "/fb/d/hello", "d/hello"] {
        assert_eq!(p.content(path, "default"), "hello\n");
    }
    assert_eq!(p.forebay(&["ls", "/d"]).expect(0).out, "hello\n");
    let long = p.forebay(&["ls", "-l", "/d"]).expect(0).out;
    assert!(long.starts_with("total ") && long.contains("-rw"), "{long}");
    assert!(
        p.forebay(&["ls", "-a", "-R"])
            .expect(0)
            .out
            .contains("/d:\n.\n..\nhello\n")
    );
    p.forebay(&["ls", "/none"])
        .expect(1)
        .says(&["/none", "no such file"]);
    assert!(p.forebay(&["df"]).expect(0).out.contains("64.0 MiB"));
    let df = p.forebay(&["df", "--json"]).expect(0).json();
    assert_eq!(df["media"][0]["capacity"], 64 << 20);
    let status = p.forebay(&["status", "--json"]).expect(0).json();
    assert_eq!(status["state"], "running");
    assert!(
        p.forebay(&["status"])
            .expect(0)
            .out
            .contains("keeper     process")
    );
    assert_eq!(
        p.forebay(&["pools", "--json"]).expect(0).json()[0]["state"],
        "running"
    );
    // The keeper outlives the process that started it, and leads a session of its own.
    let keeper = p.keeper();
    // SAFETY: getsid takes no pointer.
    assert_eq!(unsafe { libc::getsid(keeper as i32) }, keeper as i32);
    p.forebay(&["down"]).expect(0);
    // The keeper is gone, or is a zombie for which nobody has waited yet.
    let stat = std::fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    assert_eq!(std::fs::read_dir(&p.home).unwrap().count(), 0);
}

#[test]
fn a_default_that_says_what_it_chose() {
    let p = Place::new();
    let said = p.forebay(&["up", "--json"]).expect(0).json();
    assert!(said["capacity"].as_u64() >= Some(64 << 20));
    assert!(said["media"][0].as_str().unwrap().starts_with("memory:"));
    assert!(said["note"].as_str().unwrap().contains(" of "));
}

#[test]
fn a_prefix_or_size_that_surprises_is_warned_of() {
    let p = Place::new();
    let mount = p.text("real");
    std::fs::create_dir(&mount).unwrap();
    let said = p
        .forebay(&["up", "--media", "memory:16M", "--mount", &mount])
        .expect(0);
    said.says(&["warning", "hides a directory", &mount]);
    let ssd = p.text("ssd");
    std::fs::create_dir(&ssd).unwrap();
    let said = p.forebay(&[
        "up",
        "--pool",
        "b",
        "--media",
        &format!("files:{ssd}:16M"),
        "--mount",
        &ssd,
    ]);
    said.expect(2).says(&["hide", &ssd]);
}

#[test]
fn two_pools_at_once() {
    let p = Place::new();
    for (name, mount) in [("one", "/fb"), ("two", "/fb2")] {
        std::fs::write(p.at(name), name).unwrap();
        p.forebay(&[
            "up",
            "--pool",
            name,
            "--media",
            "memory:32M",
            "--mount",
            mount,
        ])
        .expect(0);
        p.forebay(&["stage", "in", name, "/file", "--pool", name])
            .expect(0);
    }
    assert_eq!(p.content("/fb/file", "one"), "one");
    let mut command = p.command(&["ls", "/fb2/file"]);
    let said = finish(command.env("FOREBAY_POOL", "two").spawn().unwrap());
    assert_eq!(said.expect(0).out, "/fb2/file\n");
    let list = p.forebay(&["pools"]).expect(0).out;
    assert!(list.contains("one") && list.contains("two") && list.contains("/fb2"));
    p.forebay(&["down", "--pool", "one"]).expect(0);
    assert_eq!(p.content("/file", "two"), "two");
}

#[test]
fn a_stale_pool_is_recognised_reopened_and_removed() {
    let p = Place::new();
    std::fs::write(p.at("file"), b"still here").unwrap();
    p.up("memory:64M");
    p.forebay(&["stage", "in", "file", "/file"]).expect(0);
    p.kill_keeper();
    assert!(p.forebay(&["pools"]).expect(0).out.contains("stale"));
    let hints = ["forebay up --reopen", "forebay down --force"];
    p.forebay(&["up"]).expect(1).says(&hints);
    assert!(
        p.forebay(&["status"])
            .expect(0)
            .out
            .contains("forebay up --reopen")
    );
    p.forebay(&["up", "--reopen"]).expect(0);
    assert!(p.forebay(&["pools"]).expect(0).out.contains("running"));
    p.forebay(&["up", "--reopen"]).expect(0);
    assert_eq!(p.content("/file", "default"), "still here");
    p.kill_keeper();
    p.forebay(&["down", "--force"]).expect(0);
    assert_eq!(std::fs::read_dir(&p.home).unwrap().count(), 0);
}

#[test]
fn files_outlive_everything_else() {
    let p = Place::new();
    make_tree(&p.at("tree"));
    std::fs::create_dir(p.at("ssd")).unwrap();
    p.up(&format!("files:{}:256M", p.text("ssd")));
    p.forebay(&["stage", "in", "tree", "/tree"]).expect(0);
    // As in a reboot, the keeper gets SIGTERM, and saves unsynced data.
    p.end_keeper(libc::SIGTERM);
    std::fs::remove_dir_all(p.home.join("default")).unwrap();
    p.forebay(&["up", "--reopen"]).expect(3).says(&["--from"]);
    p.forebay(&["up", "--reopen", "--from", &p.text("tree")])
        .expect(3)
        .says(&["nothing of a pool"]);
    p.forebay(&["up", "--reopen", "--from", &p.text("ssd")])
        .expect(0);
    p.forebay(&["stage", "out", "/tree", "back"]).expect(0);
    assert_eq!(manifest(&p.at("tree")), manifest(&p.at("back")));
    p.end_keeper(libc::SIGTERM);
    std::fs::remove_dir_all(p.home.join("default")).unwrap();
    let medium = std::fs::read_dir(p.at("ssd")).unwrap().next().unwrap();
    let checkpoint = medium.unwrap().path().join("checkpoint");
    let whole = std::fs::read(&checkpoint).unwrap();
    for (at, what) in [
        (whole.len() / 2, "in the middle"),
        (whole.len() - 1, "at the end"),
    ] {
        let mut bad = whole.clone();
        bad[at] ^= 1;
        std::fs::write(&checkpoint, bad).unwrap();
        p.forebay(&["up", "--reopen", "--from", &p.text("ssd")])
            .expect(3)
            .says(&["checkpoint", "damaged", "nothing there was changed"]);
        assert!(!p.home.join("default").exists(), "{what}");
    }
    std::fs::write(&checkpoint, whole).unwrap();
    p.forebay(&["up", "--reopen", "--from", &p.text("ssd")])
        .expect(0);
    p.forebay(&["stage", "out", "/tree", "again"]).expect(0);
    assert_eq!(manifest(&p.at("tree")), manifest(&p.at("again")));
    p.forebay(&["down"]).expect(0);
    assert_eq!(std::fs::read_dir(p.at("ssd")).unwrap().count(), 0);
}

#[test]
fn damaged_and_foreign_pools_are_refused() {
    let p = Place::new();
    let dir = p.home.join("default");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("pool.json"), b"{ this is no JSON").unwrap();
    p.forebay(&["ls"])
        .expect(3)
        .says(&["can't be used", "forebay down --force"]);
    p.forebay(&["up"]).code.checked_sub(1).expect("an error");
    assert!(p.forebay(&["pools"]).expect(0).out.contains("damaged"));
    p.forebay(&["down", "--force"]).expect(0);
    assert!(!dir.exists());
    // If one node's directory is damaged, the message names the node once.
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("node-3"), b"a file").unwrap();
    let told = p.forebay(&["up", "--nodes", "4"]).expect(3).err;
    assert_eq!(told.matches("can't be used").count(), 1, "{told}");
    assert!(told.contains("can't be used (node 3: "), "{told}");
    p.forebay(&["down", "--force"]).expect(0);
    assert!(!dir.exists());
    // A pool whose control region was truncated.
    p.up("memory:16M");
    let control = std::fs::File::options()
        .write(true)
        .open(dir.join("control"))
        .unwrap();
    control.set_len(100).unwrap();
    p.forebay(&["ls"])
        .expect(3)
        .says(&["can't be used", "control region"]);
    p.forebay(&["down", "--force"]).expect(0);
    // SAFETY: geteuid takes no arguments.
    if unsafe { libc::geteuid() } == 0 {
        std::fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        p.forebay(&["ls"])
            .expect(3)
            .says(&["another user", "FOREBAY_HOME"]);
    }
}

#[test]
fn a_pool_in_use_is_not_removed() {
    let p = Place::new();
    std::fs::write(p.at("big"), noise(1, 8 << 20)).unwrap();
    p.up("memory:64M");
    p.forebay(&["workspace", "create", "w"]).expect(0);
    p.forebay(&["collection", "put", "w", "big", "big"])
        .expect(0);
    // The command blocks until its output is read, with the pool open.
    let user = p.start(&["collection", "get", "w", "big"]);
    let until = Instant::now() + Duration::from_secs(10);
    while p.forebay(&["status", "--json"]).expect(0).json()["processes"]
        != serde_json::json!([user.id()])
    {
        assert!(Instant::now() < until, "the user is not seen");
    }
    let hints = ["in use by", &user.id().to_string(), "(forebay)", "--force"];
    p.forebay(&["down"]).expect(1).says(&hints);
    p.forebay(&["down", "--force"]).expect(0);
    assert_eq!(finish(user).code, 128 + libc::SIGTERM);
}

#[test]
fn exec_finds_its_program_and_library() {
    let p = Place::new();
    p.up("memory:16M");
    let said = p.forebay(&[
        "exec",
        "--",
        "sh",
        "-c",
        "echo $FOREBAY_POOL $FOREBAY_MOUNT $FOREBAY_DIR; exit 9",
    ]);
    let said = said.expect(9);
    assert_eq!(
        said.out.trim(),
        format!("default /fb {}", p.home.join("default").display())
    );
    p.forebay(&["exec", "--", "no-such-program"])
        .expect(127)
        .says(&["no such program"]);
    std::fs::write(p.at("plain"), b"x").unwrap();
    p.forebay(&["exec", "--", &p.text("plain")])
        .expect(126)
        .says(&["chmod +x"]);
    let preload = |library: &str| {
        finish(
            p.command(&["exec", "--", "true"])
                .env("FOREBAY_PRELOAD", library)
                .spawn()
                .unwrap(),
        )
    };
    preload("/no/such/lib.so")
        .expect(1)
        .says(&["FOREBAY_PRELOAD"]);
    // Other preloaded libraries stay in the list, after Forebay's.
    let mut command = p.command(&["exec", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let said = finish(command.env("LD_PRELOAD", "/none.so").spawn().unwrap()).expect(0);
    assert!(said.out.trim().ends_with(":/none.so"), "{}", said.out);
}

#[test]
fn run_does_it_all() {
    let p = Place::new();
    make_tree(&p.at("in:put"));
    let script = "$FOREBAY ls /data/deep && $FOREBAY stage out /data local && $FOREBAY stage in local /results";
    let said = p.forebay(&[
        "run",
        "--media",
        "memory:128M",
        "--in",
        "in:put:/data",
        "--out",
        "/results:back",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let said = said.expect(0).says(&[
        "staged in",
        "ran sh",
        "exit code 0",
        "staged out",
        "the data lay",
    ]);
    assert!(said.out.contains("hard-1"));
    assert_eq!(manifest(&p.at("in:put")), manifest(&p.at("back")));
    assert_eq!(std::fs::read_dir(&p.home).unwrap().count(), 0);
    let said = p
        .forebay(&["run", "-q", "--media", "memory:16M", "--", "true"])
        .expect(0);
    assert_eq!(said.err, "");
    p.forebay(&[
        "run",
        "--keep",
        "--pool",
        "kept",
        "--media",
        "memory:16M",
        "--",
        "true",
    ])
    .expect(0);
    p.forebay(&["down", "--pool", "kept"]).expect(0);
}

#[test]
fn run_exits_as_its_program_does() {
    let p = Place::new();
    let run = |args: &[&str]| p.forebay(&[&["run", "--media", "memory:16M"], args].concat());
    run(&["--", "sh", "-c", "exit 7"]).expect(7);
    run(&["--", "sh", "-c", "kill -9 $$"])
        .expect(128 + 9)
        .says(&["killed by signal 9"]);
    run(&["--", "no-such-program"]).expect(127);
    run(&["--", "/"]).expect(126);
    run(&["--in", "nothing:/x", "--", "touch", "ran"])
        .expect(121)
        .says(&["nothing", "nothing was run"]);
    assert!(!p.at("ran").exists());
    // If the program fails, its results are fetched. Files that the program hadn't created aren't
    // reported as missing.
    std::fs::write(p.at("partial"), b"partial").unwrap();
    let script = "$FOREBAY stage in partial /r; exit 5";
    run(&[
        "--out",
        "/r:r",
        "--out",
        "/more:more",
        "--",
        "sh",
        "-c",
        script,
    ])
    .expect(5);
    assert_eq!(std::fs::read(p.at("r")).unwrap(), b"partial");
    assert_eq!(std::fs::read_dir(&p.home).unwrap().count(), 0);
    // If the program succeeds, a missing output is an error.
    run(&["--pool", "missing", "--out", "/r:x", "--", "true"]).expect(120);
    p.forebay(&["down", "--pool", "missing"]).expect(0);
}

#[test]
fn an_incomplete_stage_out_leaves_the_pool() {
    let p = Place::new();
    std::fs::write(p.at("result"), b"result").unwrap();
    let said = p.forebay(&[
        "run",
        "--pool",
        "job",
        "--media",
        "memory:16M",
        "--out",
        "/r:way/out",
        "--",
        "sh",
        "-c",
        "$FOREBAY stage in result /r; echo in the way > way; exit 4",
    ]);
    let fetch = "forebay stage out /r way/out --pool job";
    said.expect(120)
        .says(&[fetch, "forebay down --pool job", "exit code 4"]);
    p.forebay(&["stage", "out", "/r", "way/out", "--pool", "job"])
        .expect(120);
    std::fs::remove_file(p.at("way")).unwrap();
    let words: Vec<&str> = fetch.split(' ').skip(1).collect();
    p.forebay(&words).expect(0);
    assert_eq!(std::fs::read(p.at("way/out")).unwrap(), b"result");
    p.forebay(&["down", "--pool", "job"]).expect(0);
}

#[test]
fn run_passes_signals_on() {
    let p = Place::new();
    let script =
        "trap 'echo got it; exit 3' TERM; echo ready > started; while :; do sleep 0.05; done";
    let child = p.start(&["run", "--media", "memory:16M", "--", "sh", "-c", script]);
    let until = Instant::now() + Duration::from_secs(20);
    while !p.at("started").exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(child.id(), libc::SIGTERM);
    let said = finish(child).expect(3);
    assert_eq!(said.out, "got it\n");
    assert_eq!(std::fs::read_dir(&p.home).unwrap().count(), 0);
}

#[test]
fn a_broken_pipe_ends_quietly() {
    let p = Place::new();
    p.up("memory:64M");
    // The script is larger than a pipe's buffer.
    let mut child = p.start(&["completions", "bash"]);
    drop(child.stdout.take());
    let said = finish(child);
    assert_ne!(said.code, 0);
    assert_eq!(said.err, "");
    // An error of writing, such as a full disk, is reported.
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let said = finish(p.command(&["df"]).stdout(full).spawn().unwrap()).expect(1);
    said.says(&["can't write"]);
}
