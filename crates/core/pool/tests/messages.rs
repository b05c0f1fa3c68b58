//! Messages on the pipes of a launch: encoded and decoded, and arbitrary bytes decoded.

use forebay_client::controls::Rules;
use forebay_fuzz::{Random, Watched, largest_allocation};
use forebay_placement::map::{Address, Medium, MediumKind};
use forebay_placement::{Node, NodeId, PoolMap, State};
use forebay_pool::launch::messages::{
    Unread, encode_down, encode_up, greet, hear_greeting, read_down, read_up,
};
use forebay_pool::launch::{Begin, How, Key, Listen, OneTime, Plan};
use forebay_pool::limits::{Cpus, Limits};
use forebay_pool::start::{Down, Missing, Up};
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

#[global_allocator]
static WATCHED: Watched = Watched;

fn node(r: &mut Random, number: u32) -> Node {
    let media = vec![Medium {
        kind: *r.one_of(&[MediumKind::Memory, MediumKind::Files]),
        capacity: (1 + r.below(1 << 20) as u64) << 20,
    }];
    let address = |r: &mut Random| Address {
        ip: std::net::Ipv4Addr::from(r.number() as u32).into(),
        port: r.number() as u16,
    };
    Node {
        number: NodeId(number),
        name: format!("n{}", r.below(100)),
        addresses: (0..r.below(4)).map(|_| address(r)).collect(),
        state: State::Up,
        since: r.number() >> 20,
        weight: Node::weight_of(&media),
        media,
    }
}

/// Random nodes in the order of their numbers.
fn nodes(r: &mut Random) -> Vec<Node> {
    let mut number = r.below(5) as u32;
    let mut all = Vec::new();
    for _ in 0..1 + r.below(20) {
        all.push(node(r, number));
        number += 1 + r.below(3) as u32;
    }
    all
}

fn plan(r: &mut Random) -> Plan {
    let nodes = 1 + r.below(40);
    Plan {
        forebay: "0.1.0".into(),
        name: "p".into(),
        uuid: format!("{:032x}", r.number()),
        mount: "/fb".into(),
        media: vec![
            "memory:64M".parse().unwrap(),
            "files:/a b:1G".parse().unwrap(),
        ],
        reserve: Some(r.number() >> 1),
        force: r.below(2) == 1,
        rules: Rules::parse("[[rule]]\npath = '/a/**'\nmutability = 'append'", "/fb").unwrap(),
        origin: None,
        hosts: (0..nodes).map(|n| format!("host-{n}")).collect(),
        how: r
            .one_of(&[
                How::Local,
                How::Rsh("ssh".into()),
                How::Srun {
                    components: vec![vec!["n1".into()], vec!["n2".into(), "n3".into()]],
                },
                How::Ranks {
                    rsh: "ssh".into(),
                    reach: vec![String::new(), "10.0.0.1:5000".into()],
                    key: OneTime("ab".repeat(32)),
                },
            ])
            .clone(),
        executable: "/x/forebay".into(),
        fan_out: 1 + r.below(16) as u32,
        home: Some("/h".into()),
        listen: *r.one_of(&[Listen::All, Listen::Loopback, "10.0.0.0/8".parse().unwrap()]),
        encrypt: r.once_in(2),
        of_job: r.once_in(2),
        request_timeout: Duration::from_millis(r.below(100_000) as u64),
        lease: Duration::from_millis(r.below(100_000) as u64),
        within: Duration::from_millis(r.below(100_000) as u64),
        lifetime: forebay_client::Lifetime::new(
            r.once_in(2).then_some(r.number() >> 1),
            r.once_in(2).then_some(r.number() >> 1),
            "--ttl",
        ),
        limits: Limits {
            cpus: r
                .one_of(&[None, Some(Cpus::Count(2)), Some(Cpus::List(vec![1, 5]))])
                .clone(),
            memory: r.once_in(2).then_some(r.number() >> 1),
            bandwidth: r.once_in(2).then_some(r.number() >> 1),
        },
    }
}

fn begin(r: &mut Random) -> Begin {
    let plan = plan(r);
    let mut key = Zeroizing::new([0; 32]);
    key.iter_mut().for_each(|b| *b = r.number() as u8);
    Begin {
        me: r.below(plan.hosts.len()) as u32,
        key: Key(key),
        plan,
    }
}

fn up(r: &mut Random) -> Up {
    match r.below(3) {
        0 => Up::Report(nodes(r)),
        1 => Up::Failed(
            (0..r.below(10))
                .map(|n| Missing {
                    node: n as u32,
                    below: r.number() as u32,
                    why: "é".repeat(r.below(400)),
                })
                .collect(),
        ),
        _ => Up::Ready,
    }
}

fn down(r: &mut Random) -> Down {
    match r.below(3) {
        0 => Down::Map(Arc::new(PoolMap::first([3; 16], nodes(r)).unwrap())),
        1 => Down::Go,
        _ => Down::Stop,
    }
}

#[test]
fn messages_are_read_as_they_were_written() {
    forebay_fuzz::run("launch messages", |r| {
        let (b, u, d) = (begin(r), up(r), down(r));
        let mut pipe = b.encode().to_vec();
        pipe.extend_from_slice(&encode_down(&d));
        pipe.extend_from_slice(&encode_down(&Down::Go));
        let mut from = &pipe[..];
        assert_eq!(Begin::read(&mut from).unwrap(), b);
        assert_eq!(read_down(&mut from).unwrap(), d);
        assert_eq!(read_down(&mut from).unwrap(), Down::Go);
        assert!(matches!(read_down(&mut from), Err(Unread::Closed)));
        let pipe = encode_up(&u);
        assert_eq!(read_up(&mut &pipe[..]).unwrap(), u);
        // A message of which the end is missing is refused.
        let cut = r.below(pipe.len());
        assert!(read_up(&mut &pipe[..cut]).is_err());
    });
}

#[test]
fn arbitrary_bytes_do_no_harm() {
    forebay_fuzz::run("launch bytes", |r| {
        let other = begin(r).encode().to_vec();
        let mut bytes = match r.below(4) {
            0 => other.clone(),
            1 => encode_up(&up(r)).to_vec(),
            2 => encode_down(&down(r)).to_vec(),
            _ => r.bytes(100),
        };
        r.mutate(&mut bytes, &other);
        let heard = || {
            // An accepted message is unchanged after it is encoded and decoded again.
            if let Ok(b) = Begin::read(&mut &bytes[..]) {
                assert_eq!(Begin::read(&mut &b.encode()[..]).unwrap(), b);
            }
            if let Ok(u) = read_up(&mut &bytes[..]) {
                assert_eq!(read_up(&mut &encode_up(&u)[..]).unwrap(), u);
            }
            if let Ok(d) = read_down(&mut &bytes[..]) {
                assert_eq!(read_down(&mut &encode_down(&d)[..]).unwrap(), d);
            }
            let _ = hear_greeting(&mut &bytes[..]);
        };
        let ((), largest) = largest_allocation(heard);
        let bound = 2 << 20;
        assert!(largest < bound + 64 * bytes.len(), "{largest}");
    });
}

#[test]
fn other_programs_are_recognised() {
    let mut said = Vec::new();
    greet(&mut said).unwrap();
    assert!(hear_greeting(&mut &said[..]).is_ok());
    said[7] = 9;
    assert!(matches!(
        hear_greeting(&mut &said[..]),
        Err(Unread::Version(9))
    ));
    let text = b"Welcome to \x1b[1mn3\nfoo";
    let Err(e) = hear_greeting(&mut &text[..]) else {
        panic!()
    };
    assert!(e.to_string().contains("'Welcome to [1mn3'"), "{e}");
    assert!(matches!(hear_greeting(&mut &b""[..]), Err(Unread::Closed)));
}

#[test]
fn the_key_is_never_shown() {
    let mut b = begin(&mut Random::new(1));
    b.plan.how = How::Ranks {
        rsh: "rsh".into(),
        reach: vec!["10.0.0.1:5000".into()],
        key: OneTime("ab".repeat(32)),
    };
    let shown = format!("{b:?} {:?}", b.key);
    assert!(
        shown.contains("not shown") && !shown.contains("abab"),
        "{shown}"
    );
    let dir = std::env::temp_dir().join(format!("forebay-plan-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    b.plan.write(&dir).unwrap();
    let written = std::fs::read_to_string(dir.join("plan.json")).unwrap();
    assert!(
        !written.contains("key") && !written.contains("abab"),
        "{written}"
    );
    assert_eq!(Plan::read(&dir).unwrap().how, How::Rsh("rsh".into()));
    std::fs::remove_dir_all(&dir).unwrap();
}
