//! Writes `docs/reference/protocol.md` from the tables of requests, and checks that it is up to
//! date.

use super::{ABOUT, wire};
use forebay_cluster::peers::requests::{Body, Fence, REQUESTS, Repeat, Time};
use forebay_cluster::peers::{CAPACITY, MAX_BODY, MAX_HEAD};
use forebay_cluster::serve::Class;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const CLASSES: &[(Class, &str)] = &[
    (Class::Leaf, "Needs nothing but the asked node's store."),
    (Class::Entry, "May send requests of class Leaf."),
    (
        Class::Composite,
        "May send requests of classes Leaf and Entry.",
    ),
    (
        Class::Names,
        "Changes directories and symbolic links: one at a time in the pool. May send requests of\nall \
         classes above.",
    ),
    (
        Class::Bulk,
        "Copies or moves many bytes. May send requests of class Leaf.",
    ),
];

fn document() -> String {
    let mut text = format!(
        "# Requests between nodes\n\nWhat nodes ask each other, and processes their node's daemon. Made from the \
         tables in\n`crates/core/cluster/src/peers/requests.rs` and `crates/core/pool/src/daemon/wire.rs` by\n\
         `FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p forebay-pool protocol`.\nHow messages \
         travel: [the wire](../internals/wire.md).\n\nProtocol version: {}. Arguments and replies follow one another without \
         padding: numbers\nlittle-endian, `Bytes` behind their length (4 bytes), lists behind their count (4 bytes), \
         an\n`Option` behind a byte 0 or 1, a `Result` behind 0 (success) or 1 (error). Either is at most\n{} bytes, the \
         bytes that travel with them at most {}.\n\n\
         - **Again**: what carrying the request out a second time would do. *harmless*: nothing. *step*:\n  \
         nothing, unless others have gone on; the reply is recorded. *once*: it would undo what others\n  have done; \
         the reply is recorded, and without the record the caller gets EIO.\n\
         - **Notes**: *long*: may take longer than programs wait for a node that doesn't answer. *bytes\n  sent*, \
         *bytes received*: travel with the request, or with its reply. *fenced*: refused with\n  EOWNERDEAD to a node \
         that has lost its locks of the file.\n\n\
         A reply of EHOSTDOWN has as its arguments the number of the node that doesn't answer (4 bytes), if\nthat \
         isn't the asked one.\n",
        forebay_net::envelope::VERSION,
        MAX_HEAD,
        MAX_BODY
    );
    for (class, what) in CLASSES {
        let _ = write!(
            text,
            "\n## Class {class:?}\n\n{what}\n\n\
             | number | request | arguments | reply | again | notes | what |\n|---|---|---|---|---|---|---|\n"
        );
        let mut of_class: Vec<_> = REQUESTS.iter().filter(|r| r.class == *class).collect();
        of_class.sort_by_key(|r| r.number);
        for r in of_class {
            let again = match r.repeat {
                Repeat::Harmless => "harmless",
                Repeat::Step => "step",
                Repeat::Once => "once",
            };
            let notes = [
                (r.time == Time::Long).then_some("long"),
                (r.body == Body::Sent).then_some("bytes sent"),
                (r.body == Body::Received).then_some("bytes received"),
                (r.fence != Fence::Free).then_some("fenced"),
            ];
            let notes: Vec<&str> = notes.into_iter().flatten().collect();
            let code = |types: &str| match types {
                "" | "()" => String::new(),
                types => {
                    let words: Vec<&str> = types.split_whitespace().collect();
                    format!("`{}`", words.join(" ").replace(" : ", ": "))
                }
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {again} | {} | {} |",
                r.number,
                r.name,
                code(r.arguments_text),
                code(r.reply_text),
                notes.join(", "),
                r.what
            );
        }
    }
    text.push_str(
        "\n## Of the daemons\n\nNot requests of the store. CAPACITY and ABOUT are asked of a node's own daemon, the \
         others\nby daemons of each other.\n\n| number | request | what |\n|---|---|---|\n",
    );
    let own_daemon = [
        (
            "CAPACITY",
            CAPACITY,
            "How large the pool is, how full, and which nodes have the most room.",
        ),
        (
            "ABOUT",
            ABOUT,
            "What the daemon knows of the pool and its nodes, as JSON.",
        ),
    ];
    for (name, number, what) in own_daemon.iter().chain(wire::ALL) {
        let _ = writeln!(text, "| {number:#x} | {name} | {what} |");
    }
    text
}

#[test]
fn each_request_is_there_once_and_sound() {
    let mut names = BTreeSet::new();
    for r in REQUESTS {
        assert!(names.insert(r.name), "{} is there twice", r.name);
        assert!(r.number < CAPACITY && !r.what.is_empty(), "{}", r.name);
        assert!(CLASSES.iter().any(|(class, _)| *class == r.class));
        // Requests whose handler waits for third nodes, or copies bytes, may take long.
        let waits = matches!(r.class, Class::Composite | Class::Names | Class::Bulk);
        assert!(!waits || r.time == Time::Long, "{} isn't brief", r.name);
        // A requester waits for received bytes no longer than the request timeout.
        assert!(
            r.body != Body::Received || r.repeat == Repeat::Harmless && r.time == Time::Brief,
            "{} gets bytes back",
            r.name
        );
        // A request that sends bytes changes something.
        assert!(
            r.body != Body::Sent || r.repeat == Repeat::Once,
            "{}",
            r.name
        );
        // A fenced request begins with an object.
        let object = ["id: ObjectId", "source: ObjectId", "lock: Request"];
        let begins = object
            .iter()
            .any(|o| r.arguments_text.replace(" : ", ": ").starts_with(o));
        assert!(r.fence == Fence::Free || begins, "{} is fenced", r.name);
    }
    for (name, number, _) in wire::ALL {
        assert!(*number >= wire::OWN, "{name}");
    }
}

#[test]
fn the_protocol_page_is_up_to_date() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/reference/protocol.md"
    );
    if std::env::var_os("FOREBAY_WRITE_DOCS").is_some() {
        std::fs::write(file, document()).unwrap();
    }
    let there = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        there == document(),
        "docs/reference/protocol.md is stale: FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p forebay-pool protocol"
    );
}
