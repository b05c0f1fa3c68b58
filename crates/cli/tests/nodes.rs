//! Tests pools of several nodes on the command line: started on one host or by a remote shell,
//! found by programs, checked, removed. Also tests that a failed start leaves nothing.

mod place;

use place::{Place, finish};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < limit, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the running processes that use this test's pools, with their command lines.
fn processes(p: &Place) -> Vec<(u32, String)> {
    let wanted = format!("FOREBAY_HOME={}", p.home.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let read = |what: &str| std::fs::read(entry.path().join(what)).unwrap_or_default();
        let ours = read("environ")
            .split(|&b| b == 0)
            .any(|v| v == wanted.as_bytes());
        if ours && pid != std::process::id() {
            let words = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            found.push((pid, words));
        }
    }
    found
}

/// Waits until neither a process nor a pool nor a medium is left.
#[track_caller]
fn assert_nothing_left(p: &Place) {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let processes = processes(p);
        let mut files: Vec<_> = std::fs::read_dir(&p.home).unwrap().flatten().collect();
        // The lock file of a start that was killed stays. The file is empty, and the next start
        // reuses it.
        files.retain(|f| !f.file_name().as_encoded_bytes().starts_with(b".starting-"));
        let media = std::fs::read_dir(p.at("ssd")).into_iter().flatten();
        files.extend(media.flatten());
        if processes.is_empty() && files.is_empty() {
            return;
        }
        assert!(Instant::now() < limit, "left: {processes:?} {files:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn four_nodes_on_one_host() {
    let p = Place::new();
    std::fs::create_dir(p.at("ssd")).unwrap();
    let files = format!("files:{}:64M", p.text("ssd"));
    let up = [
        "up",
        "--nodes",
        "4",
        "--media",
        "memory:64M",
        "--media",
        &files,
    ];
    let said = p.forebay(&up).expect(0);
    for word in [
        "'default'",
        "4 nodes",
        "memory:64M",
        "512.0 MiB",
        "/fb",
        " s\n",
    ] {
        let quick = word == " s\n" && said.out.ends_with(" ms\n");
        assert!(said.out.contains(word) || quick, "{}", said.out);
    }
    p.forebay(&["up", "--nodes", "4"])
        .expect(1)
        .says(&["exists already"]);
    p.forebay(&["up"]).expect(1).says(&["exists already"]);
    let status = p.forebay(&["status", "--json"]).expect(0).json();
    assert_eq!(status["state"], "running");
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 4);
    for (i, node) in nodes.iter().enumerate() {
        assert_eq!((&node["node"], &node["state"]), (&i.into(), &"up".into()));
        // The daemon outlives the process that started it, leads a session of its own, and holds no
        // pipe.
        let pid = node["keeper"].as_i64().unwrap() as i32;
        // SAFETY: getsid takes no pointer.
        assert_eq!(unsafe { libc::getsid(pid) }, pid);
        // The daemon closes the launcher's descriptors when the start is over.
        until("the daemon to hold no pipe", || {
            (0..3).all(|fd| {
                let file = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
                file == Path::new("/dev/null") || file.ends_with("keeper.log")
            })
        });
        // The key is in a file of its own, and in no other file.
        let dir = Path::new(node["dir"].as_str().unwrap());
        let key = std::fs::read(dir.join("key")).unwrap();
        assert_eq!(key.len(), 32);
        let mode = dir.join("key").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for file in ["plan.json", "pool.json", "keeper.log", "map"] {
            let bytes = std::fs::read(dir.join(file)).unwrap();
            assert!(!bytes.windows(32).any(|w| w == key), "{file}");
        }
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!bytes.windows(32).any(|w| w == key), "{file}");
        }
    }
    let df = p.forebay(&["df", "--json"]).expect(0).json();
    assert_eq!(df["media"][0]["capacity"], 256 << 20);
    assert_eq!(df["media"][1]["capacity"], 256 << 20);
    let pools = p.forebay(&["pools", "--json"]).expect(0).json();
    assert_eq!(pools[0]["nodes"], serde_json::json!([0, 1, 2, 3]));
    assert!(
        p.forebay(&["pools"])
            .expect(0)
            .out
            .contains("each of 4 nodes")
    );
    p.forebay(&["fsck"]).expect(0);
    p.forebay(&["fsck", "--repair"]).expect(0);
    let status = p.forebay(&["status", "--json"]).expect(0).json();
    assert_eq!(status["state"], "running");
    p.forebay(&["down"]).expect(0);
    assert_nothing_left(&p);
}

#[test]
fn a_process_finds_its_node() {
    let p = Place::new();
    let up = ["up", "--nodes", "3", "--media", "memory:64M"];
    p.forebay(&up).expect(0);
    let says = [
        "exec",
        "--",
        "sh",
        "-c",
        "basename $FOREBAY_DIR; echo $FOREBAY_NODE",
    ];
    let at = |variables: &[(&str, &str)]| {
        let mut command = p.command(&says);
        let ours = [
            "FOREBAY_NODE",
            "PMI_RANK",
            "MPI_LOCALRANKID",
            "PMIX_RANK",
            "SLURM_LOCALID",
        ];
        ours.iter().for_each(|v| {
            command.env_remove(v);
        });
        command.envs(variables.iter().copied());
        finish(command.spawn().unwrap())
    };
    let node = |k: u32| format!("node-{k}\n{k}\n");
    assert_eq!(at(&[]).expect(0).out, node(0));
    assert_eq!(at(&[("FOREBAY_NODE", "2")]).expect(0).out, node(2));
    for rank in 0..5 {
        let text = rank.to_string();
        assert_eq!(at(&[("PMI_RANK", &text)]).expect(0).out, node(rank % 3));
        // The rank on the host takes precedence over the rank in the job.
        let both = [("PMIX_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", &text)];
        assert_eq!(at(&both).expect(0).out, node(rank % 3));
        let both = [("FOREBAY_NODE", "1"), ("SLURM_LOCALID", &text)];
        assert_eq!(at(&both).expect(0).out, node(1));
    }
    at(&[("FOREBAY_NODE", "3")])
        .expect(2)
        .says(&["node 3", "isn't on this host", "0, 1, 2"]);
    at(&[("FOREBAY_NODE", "x")])
        .expect(2)
        .says(&["FOREBAY_NODE"]);
    let mut given = vec!["exec", "--node", "1"];
    given.extend(&says[1..]);
    assert_eq!(p.forebay(&given).expect(0).out, node(1));
    p.forebay(&["down"]).expect(0);
    // A pool of one node ignores the choice of a node.
    p.forebay(&["up", "--media", "memory:64M"]).expect(0);
    assert!(
        at(&[("FOREBAY_NODE", "2")])
            .expect(0)
            .out
            .starts_with("default\n")
    );
    p.forebay(&["down"]).expect(0);
    assert_nothing_left(&p);
}

#[test]
fn nodes_are_killed_paused_and_restarted() {
    let p = Place::new();
    p.forebay(&["up", "--nodes", "2", "--media", "memory:64M"])
        .expect(0);
    let node = |k: usize| p.forebay(&["status", "--json"]).expect(0).json()["nodes"][k].clone();
    let before = node(1)["keeper"].clone();
    p.forebay(&["node", "kill", "1"]).expect(0);
    assert_eq!(node(1)["state"], "dead");
    assert_eq!(node(0)["state"], "up");
    assert!(
        p.forebay(&["status"])
            .expect(0)
            .out
            .contains("node restart 1")
    );
    assert_eq!(
        p.forebay(&["pools", "--json"]).expect(0).json()[0]["state"],
        "stale"
    );
    p.forebay(&["node", "kill", "1"])
        .expect(1)
        .says(&["doesn't run", "node restart 1"]);
    p.forebay(&["node", "kill", "7"])
        .expect(2)
        .says(&["node 7"]);
    p.forebay(&["node", "restart", "1"]).expect(0);
    assert_eq!(node(1)["state"], "up");
    assert_ne!(node(1)["keeper"], before);
    p.forebay(&["node", "pause", "0"]).expect(0);
    assert_eq!(node(0)["state"], "paused");
    p.forebay(&["node", "resume", "0"]).expect(0);
    assert_eq!(node(0)["state"], "up");
    // All daemons are dead, and are restarted together.
    p.forebay(&["node", "kill", "0"]).expect(0);
    p.forebay(&["node", "kill", "1"]).expect(0);
    p.forebay(&["up", "--reopen"]).expect(0);
    assert_eq!(
        p.forebay(&["status", "--json"]).expect(0).json()["state"],
        "running"
    );
    p.forebay(&["node", "pause", "0"]).expect(0);
    p.forebay(&["down"]).expect(0);
    assert_nothing_left(&p);
}

/// Creates a substitute for a remote shell. The substitute runs the command on this machine if its
/// first argument is a host name that it knows; otherwise the substitute fails.
fn remote_shell(p: &Place) -> String {
    let path = p.at("rsh");
    let script = "#!/bin/sh\nhost=$1; shift\ncase $host in\n\
        here*) exec sh -c \"cd /; $*\";;\n\
        chatty) echo Welcome to this host; exec sh -c \"$*\";;\n\
        hangs) exec sleep 30;;\n\
        *) echo \"rsh: no route to $host\" >&2; exit 255;;\nesac\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn hosts_are_started_by_a_remote_shell() {
    let p = Place::new();
    let rsh = remote_shell(&p);
    let up = |hosts: &str, more: &[&str]| {
        let mut words = vec!["up", "--rsh", &rsh, "--listen", "127.0.0.0/8"];
        words.extend(["--media", "memory:64M", "--hosts", hosts]);
        words.extend(more);
        p.forebay(&words)
    };
    let said = up("here1,here2,here2", &["--json"]).expect(0).json();
    let names: Vec<_> = said["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| &n["name"])
        .collect();
    assert_eq!(names, ["here1", "here2/1", "here2/2"]);
    p.forebay(&["exec", "--node", "2", "--", "true"]).expect(0);
    p.forebay(&["down"]).expect(0);
    assert_nothing_left(&p);

    up("here1,far,here2,farther", &[]).expect(1).says(&[
        "node 1 on far: rsh: no route to far",
        "node 3 on farther: rsh: no route",
        "nothing of it is left",
    ]);
    assert_nothing_left(&p);
    up("far", &[])
        .expect(1)
        .says(&["node 0 on far: rsh: no route"]);
    up("here1,chatty", &[])
        .expect(1)
        .says(&["node 1 on chatty", "'Welcome to this host'"]);
    assert_nothing_left(&p);
    let began = Instant::now();
    up("here1,hangs", &["--within", "1"])
        .expect(1)
        .says(&["node 1 on hangs: doesn't answer"]);
    assert!(
        began.elapsed() < Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    assert_nothing_left(&p);
    up("here1,-oProxyCommand=x", &[])
        .expect(2)
        .says(&["is no host"]);
    let elsewhere = ["--listen", "10.255.255.254", "--hosts", "here1"];
    let mut words = vec!["up", "--rsh", &rsh];
    words.extend(elsewhere);
    p.forebay(&words)
        .expect(1)
        .says(&["no address to listen on"]);
    assert_nothing_left(&p);
}

/// Tests hosts that don't see each other: the remote shell gives each host its own FOREBAY_HOME.
#[test]
fn a_pool_is_seen_and_removed_from_any_host() {
    let p = Place::new();
    let rsh = p.text("rsh");
    let script = format!(
        "#!/bin/sh\nhost=$1; shift\ntest -e {0}/$host || exit 255\n\
         FOREBAY_HOME={0}/$host exec sh -c \"$*\"\n",
        p.home.display()
    );
    std::fs::write(&rsh, script).unwrap();
    std::fs::set_permissions(&rsh, PermissionsExt::from_mode(0o755)).unwrap();
    for host in ["h0", "h1", "h2"] {
        std::fs::create_dir(p.home.join(host)).unwrap();
    }
    let pool = format!("test-{}", std::process::id());
    let on = |host: &str, words: &[&str]| {
        let mut command = p.command(words);
        command.env("FOREBAY_POOL", &pool).env("FOREBAY_RSH", &rsh);
        // Without FOREBAY_HOME, `up` lets each host use its default.
        match host {
            "" => command.env_remove("FOREBAY_HOME"),
            host => command.env("FOREBAY_HOME", p.home.join(host)),
        };
        finish(command.spawn().unwrap())
    };
    let up = [
        "up",
        "--hosts",
        "h0,h1,h2",
        "--media",
        "memory:64M",
        "--request-timeout",
        "2",
    ];
    let mut listening = up.to_vec();
    listening.extend(["--listen", "127.0.0.1"]);
    on("", &listening).expect(0);
    for (k, host) in ["h0", "h1", "h2"].iter().enumerate() {
        let status = on(host, &["status", "--json"]).expect(0).json();
        assert_eq!(status["state"], "running");
        for (n, node) in status["nodes"].as_array().unwrap().iter().enumerate() {
            assert_eq!(node["state"], "up");
            assert_eq!(node["here"], n == k);
            assert_eq!(node["media"][0]["capacity"], 64 << 20);
        }
        let df = on(host, &["df", "--json"]).expect(0).json();
        assert_eq!(df["media"][0]["capacity"], 192 << 20);
        let says = ["exec", "--", "sh", "-c", "echo $FOREBAY_NODE"];
        assert_eq!(on(host, &says).expect(0).out, format!("{k}\n"));
    }
    on("h0", &["exec", "--node", "1", "--", "true"])
        .expect(2)
        .says(&["isn't on this host"]);
    // A drill runs on the host of its node.
    on("h0", &["node", "kill", "2"]).expect(0);
    let state = |host: &str| {
        let status = on(host, &["status", "--json"]).expect(0).json();
        status["nodes"][2]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (state("h0"), state("h2")),
        ("unreachable".into(), "dead".into())
    );
    let df = on("h0", &["df"]).expect(0);
    df.says(&["not counted", "node 2 (h2)"]);
    on("h0", &["node", "kill", "2"])
        .expect(1)
        .says(&["h2: the daemon of node 2", "doesn't run"]);
    on("h0", &["node", "kill", "3"])
        .expect(2)
        .says(&["no node 3"]);
    on("h1", &["node", "restart", "2"]).expect(0);
    until("node 2 to be back", || {
        state("h0") == "up" && state("h2") == "up"
    });
    // A host that can't be asked may be using the pool.
    std::fs::rename(p.home.join("h1"), p.home.join("away")).unwrap();
    on("h0", &["down"])
        .expect(1)
        .says(&["h1: ", "nothing was removed", "--force"]);
    on("h0", &["status"]).expect(0);
    std::fs::rename(p.home.join("away"), p.home.join("h1")).unwrap();
    on("h1", &["down"]).expect(0);
    for host in ["h0", "h1", "h2"] {
        until("all to be gone", || {
            std::fs::read_dir(p.home.join(host)).unwrap().count() == 0
        });
        std::fs::remove_dir(p.home.join(host)).unwrap();
    }
    assert_nothing_left(&p);
}

#[test]
fn a_node_that_cannot_be_made_takes_all_with_it() {
    let p = Place::new();
    let up = ["up", "--nodes", "3", "--media", "files:/dev/null/x:64M"];
    p.forebay(&up)
        .expect(1)
        .says(&["node 0", "/dev/null/x", "nothing of it is left"]);
    assert_nothing_left(&p);
}

/// If any process of a start is killed at any time, the pool runs, or nothing is left.
#[test]
fn whoever_is_killed_during_a_start_leaves_nothing() {
    let p = Place::new();
    std::fs::create_dir(p.at("ssd")).unwrap();
    let files = format!("files:{}:64M", p.text("ssd"));
    let rounds = std::env::var("FOREBAY_KILLS").map_or(20, |n| n.parse().unwrap());
    // From 18 nodes on, the launch tree has two levels below node 0.
    let nodes = std::env::var("FOREBAY_KILL_NODES").unwrap_or_else(|_| "5".into());
    let count: usize = nodes.parse().unwrap();
    let mut random = forebay_fuzz::Random::new(7);
    let mut failed = 0;
    for round in 0..rounds {
        let mut up = p.start(&["up", "--nodes", &nodes, "--media", &files]);
        // Waits for a number of processes, and not for a time: the machine may be busy.
        let far = 1 + random.below(1 + 2 * count);
        let limit = Instant::now() + Duration::from_millis(300);
        let mut victims = Vec::new();
        while victims.len() < far && Instant::now() < limit {
            victims = processes(&p);
        }
        std::thread::sleep(Duration::from_micros(random.below(10_000) as u64));
        let mut killed = None;
        if !victims.is_empty() {
            let (pid, words) = random.one_of(&victims);
            // SAFETY: kill takes no pointer. The process may have just ended, which is harmless.
            unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
            killed = Some((*pid, words.clone()));
        }
        let by_us = killed.as_ref().is_some_and(|k| k.0 == up.id());
        let status = if by_us {
            up.wait().unwrap();
            None
        } else {
            Some(finish(up))
        };
        let words = killed.map_or("nobody".to_owned(), |k| k.1);
        match status {
            Some(said) if said.code == 0 => {
                // The killed process had ended already, or was a guard, whose death does no harm.
                p.forebay(&["down", "--force"]).expect(0);
            }
            Some(said) => {
                failed += 1;
                assert!(
                    said.err.contains("node "),
                    "round {round}, {words}: {}",
                    said.err
                );
            }
            None => {
                failed += 1;
                // A pool may be left for a moment: the daemons have to notice the death first.
                until("the daemons to know", || {
                    let state = p.forebay(&["pools", "--json"]).json();
                    let state = &state[0]["state"];
                    state.is_null() || state == "running"
                });
                std::thread::sleep(Duration::from_millis(100));
                p.forebay(&["down", "--force"]).expect(0);
            }
        }
        assert_nothing_left(&p);
    }
    println!("{failed} of {rounds} starts were hit");
    assert!(failed > rounds / 8, "{failed} of {rounds} were hit");
}
