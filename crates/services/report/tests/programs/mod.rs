//! Makes recordings and counters as if programs had run and opened, read and written files. Each
//! rank is a process on a separate node.

#![allow(
    dead_code,
    reason = "three test programs include this module, and each uses a part of it"
)]

use forebay_report::run::{Facts, NodeFacts, Run};
use forebay_report::stream::{Event, Recording};
use forebay_report::totals::{Process, Totals};
use forebay_trace::Point;
use forebay_trace::read::Record;
use rustix::fs::OFlags;
use std::collections::BTreeMap;

pub const MIB: u64 = 1 << 20;
/// Duration of an operation that stays on its node, and of one that sends a request to another
/// node. Nanoseconds.
pub const HERE: u64 = 1_000;
pub const THERE: u64 = 40_000;

pub fn rdonly() -> OFlags {
    OFlags::RDONLY
}

pub fn made() -> OFlags {
    OFlags::RDWR | OFlags::CREATE | OFlags::EXCL
}

#[derive(Default)]
pub struct Programs {
    pub recording: Recording,
    pub counted: BTreeMap<u32, Totals>,
    time: u64,
    ids: BTreeMap<String, u64>,
    homes: BTreeMap<u64, u32>,
    directories: BTreeMap<String, u64>,
    next: u64,
    /// Number of nodes. Rank r is on node r % nodes.
    pub nodes: u32,
}

impl Programs {
    pub fn on(nodes: u32) -> Programs {
        Programs {
            time: 1_700_000_000_000_000_000,
            next: 1000,
            nodes,
            ..Programs::default()
        }
    }

    pub fn node(&self, rank: u32) -> u32 {
        rank % self.nodes
    }

    fn event(&mut self, rank: u32, point: Point, fields: [u64; 3], text: Option<&[u8]>) {
        let record = Record {
            number: 0,
            time: self.time,
            point: point as u16,
            process: 100 + rank,
            thread: 100 + rank,
            request: 0,
            fields: [fields[0], fields[1], fields[2], 0],
            text: text.map(<[u8]>::to_vec),
        };
        let node = self.node(rank) as u16;
        self.recording.events.push(Event { node, record });
    }

    fn count(&mut self, rank: u32, kind: &str, bytes: u64, remote: bool) {
        let totals = self.counted.entry(rank).or_default();
        let counted = totals.operations.entry(kind.into()).or_default();
        let took = if remote { THERE } else { HERE };
        counted.count += 1;
        counted.bytes += bytes;
        counted.remote += u64::from(remote);
        counted.durations.timed += 1;
        counted.durations.nanoseconds += took;
        if remote {
            totals.requests.timed += 1;
            totals.requests.nanoseconds += THERE;
        }
        self.time += took;
    }

    /// Adds `n` operations to a rank's counters, without events.
    pub fn counts(&mut self, rank: u32, kind: &str, n: u64) {
        for _ in 0..n {
            self.count(rank, kind, 0, false);
        }
    }

    pub fn open(&mut self, rank: u32, path: &str, flags: OFlags) -> u64 {
        let (dir, name) = path.rsplit_once('/').unwrap();
        self.open_bytes(rank, dir, name.as_bytes(), flags)
    }

    pub fn open_bytes(&mut self, rank: u32, dir: &str, name: &[u8], flags: OFlags) -> u64 {
        let next = self.next;
        let directory = *self.directories.entry(dir.into()).or_insert(next);
        self.recording.directories.insert(directory, dir.into());
        let key = format!("{dir}/{}", String::from_utf8_lossy(name));
        let id = *self.ids.entry(key).or_insert(next + 1);
        self.next += 2;
        let creates = flags.contains(OFlags::CREATE);
        if creates {
            let node = self.node(rank);
            self.homes.entry(id).or_insert(node);
        }
        // A name's hash determines the node that has its entry.
        let remote = self.nodes > 1 && !id.is_multiple_of(u64::from(self.nodes));
        self.count(rank, if creates { "create" } else { "open" }, 0, remote);
        let fields = [id, directory, flags.bits().into()];
        self.event(rank, Point::POSIX_OPENED, fields, Some(name));
        id
    }

    fn is_remote(&self, rank: u32, file: u64) -> bool {
        self.homes
            .get(&file)
            .is_some_and(|home| *home != self.node(rank))
    }

    pub fn write(&mut self, rank: u32, file: u64, at: u64, n: u64) {
        self.event(rank, Point::POSIX_WRITE_ENTER, [file, at, n], None);
        let remote = self.is_remote(rank, file);
        self.count(rank, "write", n, remote);
        self.event(rank, Point::POSIX_WRITE_EXIT, [file, n, 0], None);
    }

    pub fn read(&mut self, rank: u32, file: u64, at: u64, n: u64) {
        self.event(rank, Point::POSIX_READ_ENTER, [file, at, n], None);
        let remote = self.is_remote(rank, file);
        self.count(rank, "read", n, remote);
        self.event(rank, Point::POSIX_READ_EXIT, [file, n, 0], None);
    }

    pub fn truncate(&mut self, rank: u32, file: u64, size: u64) {
        self.count(rank, "truncate", 0, false);
        self.event(rank, Point::POSIX_TRUNCATED, [file, size, 0], None);
    }

    pub fn close(&mut self, rank: u32, file: u64) {
        self.count(rank, "close", 0, false);
        self.event(rank, Point::STORE_CLOSE, [file, 0, 0], None);
    }

    pub fn processes(&self) -> Vec<Process> {
        let process = |(&rank, totals): (&u32, &Totals)| Process {
            node: self.node(rank),
            process: 100 + rank,
            program: "solver".into(),
            totals: totals.clone(),
        };
        self.counted.iter().map(process).collect()
    }

    pub fn facts(&self) -> Facts {
        let node = |node| NodeFacts {
            node,
            name: Some(format!("n{node}")),
        };
        Facts {
            command: Some("./solver --steps 5".into()),
            nodes: (0..self.nodes).map(node).collect(),
            ..Facts::default()
        }
    }

    pub fn run(&self) -> Run {
        forebay_report::analyse::run(&self.recording, &self.processes(), self.facts())
    }
}
