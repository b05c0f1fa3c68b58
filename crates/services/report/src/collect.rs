//! The collector, which moves events from the rings of nodes into a stream, while programs run.
//!
//! The collector registers itself in the shared memory of each node. If events have to wait for the
//! collector (`waits`), a process with a full ring pauses until the collector has emptied the ring,
//! for at most one second. The process doesn't wait when the collector has ended or can't write.
//! Without `waits`, a full ring overwrites its oldest events, which count as lost.

use crate::node::Node;
use crate::stream::Writer;
use forebay_store::{Region, process};
use forebay_trace::Point;
use forebay_trace::clock::{self, Scale};
use forebay_trace::points::POINTS;
use forebay_trace::read::{Extent, Record, Words, read};
use forebay_trace::ring::Header;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// Number of turns between two searches for new rings.
const LIST_EVERY: u32 = 8;

/// Minimum time over which the length of clock ticks is measured.
const BASE: Duration = Duration::from_millis(100);

/// A ring that is being emptied.
struct Open {
    region: Region,
    /// Number of the first event that hasn't been read from the ring.
    next: u64,
    /// Whether all events of the ring go to the stream, because the ring was made after the
    /// collector began.
    whole: bool,
    named: bool,
}

/// Numbers of events and rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of events written.
    pub events: u64,
    /// Number of events that were overwritten before they were read.
    pub lost: u64,
    /// Number of events that couldn't be written, because the disk is full.
    pub unwritten: u64,
    /// Number of rings that couldn't be read.
    pub damaged: u64,
    /// Number of processes that found no room for a ring.
    pub refused: u64,
}

/// Moves events from rings into a stream.
pub struct Collector<W: Write> {
    nodes: Vec<Node>,
    /// One scale per node, fixed for the whole recording: with a changed scale, a later event could
    /// get an earlier time.
    scales: Vec<Scale>,
    open: HashMap<PathBuf, Open>,
    damaged: BTreeSet<PathBuf>,
    writer: Option<Writer<W>>,
    /// Whether processes with full rings wait for this collector.
    waits: bool,
    turns: u32,
    refused_before: u64,
    /// Tracepoints of each node that this collector has switched on.
    switched: Vec<Vec<usize>>,
    /// The directories in which files were opened.
    directories: BTreeSet<u64>,
    /// Numbers of the events and rings that this collector has handled so far.
    pub collected: Collected,
    /// The error because of which the collector no longer writes.
    pub failed: Option<io::Error>,
}

impl<W: Write> Collector<W> {
    /// Enables tracepoints, and begins to collect the events of these nodes. With `waits`, a
    /// program whose ring is full waits for the collector, so that no event is lost.
    ///
    /// # Errors
    /// EBUSY: another process records. Errors of writing the beginning of the stream.
    pub fn new(nodes: Vec<Node>, to: W, waits: bool, points: &[usize]) -> io::Result<Collector<W>> {
        claim(&nodes)?;
        let writer = Writer::new(to).inspect_err(|_| release(&nodes))?;
        let refused_before = refused(&nodes);
        let scales = nodes.iter().map(settled_scale).collect();
        let mut collector = Collector {
            nodes,
            scales,
            open: HashMap::new(),
            damaged: BTreeSet::new(),
            writer: Some(writer),
            waits,
            turns: 0,
            refused_before,
            switched: Vec::new(),
            directories: BTreeSet::new(),
            collected: Collected::default(),
            failed: None,
        };
        for node in &collector.nodes {
            node.shared().head.waits.store(waits.into(), Release);
        }
        collector.find_rings();
        for open in collector.open.values_mut() {
            open.next = header(&open.region).next.load(Acquire);
            open.whole = false;
        }
        for node in &collector.nodes {
            let on = on(node);
            let ours: Vec<usize> = (points.iter().copied())
                .filter(|point| !on.contains(point))
                .collect();
            switch(node, &ours, true);
            collector.switched.push(ours);
        }
        Ok(collector)
    }

    fn find_rings(&mut self) {
        for node in &self.nodes {
            // If no descriptor is free now, the next turn finds the rings.
            for path in node.ring_files().unwrap_or_default() {
                if self.open.contains_key(&path) || self.damaged.contains(&path) {
                    continue;
                }
                let Ok(region) = Region::open(&path, size_of::<Header>()) else {
                    continue;
                };
                // The ring is still being made, so it has no events.
                if header(&region).magic.load(Acquire) == 0 {
                    continue;
                }
                let open = Open {
                    region,
                    whole: true,
                    next: 0,
                    named: false,
                };
                self.open.insert(path, open);
            }
        }
    }

    /// Takes the events that are in the rings now. Returns their number.
    pub fn turn(&mut self) -> u64 {
        self.take_all(Extent::Settled)
    }

    fn take_all(&mut self, extent: Extent) -> u64 {
        let lists = self.turns.is_multiple_of(LIST_EVERY);
        if lists {
            self.find_rings();
        }
        self.turns = self.turns.wrapping_add(1);
        let before = self.collected.events + self.collected.unwritten;
        for i in 0..self.nodes.len() {
            self.take(i, extent, lists);
        }
        if let Some(writer) = &mut self.writer
            && let Err(e) = writer.flush()
        {
            self.give_up(e);
        }
        self.collected.events + self.collected.unwritten - before
    }

    fn take(&mut self, node: usize, extent: Extent, lists: bool) {
        let (number, scale) = (self.nodes[node].number.0 as u16, self.scales[node]);
        let dir = self.nodes[node].dir().to_owned();
        let head = &self.nodes[node].shared().head;
        head.reader_seen.store(clock::monotonic(), Relaxed);
        // Set in each turn, because processes clear it if the collector's last turn was too long
        // ago.
        let waits = self.waits && self.writer.is_some();
        head.waits.store(waits.into(), Relaxed);
        let rings: Vec<PathBuf> = (self.open.keys())
            .filter(|path| path.starts_with(&dir))
            .cloned()
            .collect();
        for path in rings {
            let Some(mut open) = self.open.remove(&path) else {
                continue;
            };
            // Checked before reading: if the process has ended, its last events are in the ring.
            let ended = lists && process::has_ended(header(&open.region).process.load(Relaxed));
            let extent = if ended { Extent::All } else { extent };
            if self.empty(&mut open, (number, scale), extent).is_err() {
                self.collected.damaged += 1;
                self.damaged.insert(path);
            } else if ended && open.whole && self.writer.is_some() {
                // Makes room for the rings of other processes. If clearing the ring fails, the
                // keeper removes it.
                let _ = self.nodes[node].clear_ring(&path);
            } else {
                self.open.insert(path, open);
            }
        }
    }

    /// Takes the events of one ring.
    ///
    /// # Errors
    /// A sentence with the reason why the ring can't be read.
    fn empty(
        &mut self,
        open: &mut Open,
        (number, scale): (u16, Scale),
        extent: Extent,
    ) -> Result<(), String> {
        // SAFETY: the region is mapped as long as `open` exists. A ring consists of 8-byte words,
        // all of them atomics.
        let words = unsafe {
            let base = open.region.base().cast::<AtomicU64>();
            std::slice::from_raw_parts(base, open.region.len() / 8)
        };
        let ring = read(&Words::new(words), open.next, extent)?;
        self.directories
            .extend(ring.records.iter().filter_map(directory));
        let written = self.writer.as_mut().map(|writer| {
            if !open.named {
                writer.process(number, ring.process, &ring.program)?;
                open.named = true;
            }
            for record in &ring.records {
                writer.event(number, record, scale.time(record.time))?;
            }
            match ring.lost {
                0 => Ok(()),
                lost => writer.lost(number, ring.process, lost),
            }
        });
        let count = ring.records.len() as u64;
        match &written {
            Some(Ok(())) => self.collected.events += count,
            _ => self.collected.unwritten += count,
        }
        self.collected.lost += ring.lost;
        open.next = ring.next;
        header(&open.region).taken.store(ring.next, Release);
        if let Some(Err(e)) = written {
            self.give_up(e);
        }
        Ok(())
    }

    /// Stops writing after an error. Programs no longer wait for the collector.
    fn give_up(&mut self, error: io::Error) {
        release(&self.nodes);
        self.writer = None;
        self.failed.get_or_insert(error);
    }

    /// Disables tracepoints, takes the remaining events, and ends the stream. The stream's end has
    /// the paths of the directories in which files were opened; `path` returns them by id.
    ///
    /// # Errors
    /// The first error of writing the stream.
    pub fn finish(mut self, path: impl Fn(u64) -> Option<Vec<u8>>) -> io::Result<Collected> {
        for (node, ours) in self.nodes.iter().zip(&self.switched) {
            switch(node, ours, false);
        }
        self.turns = 0;
        self.take_all(Extent::All);
        let refused = refused(&self.nodes);
        self.collected.refused = refused.saturating_sub(self.refused_before);
        release(&self.nodes);
        match (self.failed.take(), self.writer.take()) {
            (Some(e), _) => Err(e),
            (None, Some(mut writer)) => {
                for &id in &self.directories {
                    if let Some(path) = path(id) {
                        writer.directory(id, &path)?;
                    }
                }
                writer.finish().map(|_| self.collected)
            }
            (None, None) => Ok(self.collected),
        }
    }
}

/// Returns the directory in which an object was opened, made or renamed.
fn directory(record: &Record) -> Option<u64> {
    let in_one = [
        Point::POSIX_OPENED,
        Point::POSIX_DIRECTORY_MADE,
        Point::POSIX_RENAMED,
    ];
    let is_it = in_one.iter().any(|&p| record.point == p as u16);
    is_it.then_some(record.fields[1])
}

/// Returns the number of processes of these nodes that have found no room for a ring.
fn refused(nodes: &[Node]) -> u64 {
    let of = |node: &Node| node.shared().head.refused.load(Relaxed);
    nodes.iter().map(of).sum()
}

/// Registers this process as the only one that empties the rings of these nodes.
///
/// # Errors
/// EBUSY: another process empties them.
fn claim(nodes: &[Node]) -> io::Result<()> {
    for (i, node) in nodes.iter().enumerate() {
        let head = &node.shared().head;
        let other = head.reader.load(Acquire);
        let free = !node.shared().is_read();
        if free {
            head.reader_seen.store(clock::monotonic(), Relaxed);
        }
        let me = std::process::id();
        let swapped = || head.reader.compare_exchange(other, me, AcqRel, Relaxed);
        if !free || swapped().is_err() {
            release(&nodes[..i]);
            let why = format!("process {other} records the events already");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
    }
    Ok(())
}

/// Unregisters the collector: no process reads the rings of these nodes now, so none waits for a
/// reader.
fn release(nodes: &[Node]) {
    for node in nodes {
        node.shared().head.waits.store(0, Release);
        node.shared().head.reader.store(0, Release);
    }
}

/// Returns the scale of a node's clock ticks, measured over at least [`BASE`].
fn settled_scale(node: &Node) -> Scale {
    let age = clock::monotonic().saturating_sub(node.shared().head.begun().monotonic);
    std::thread::sleep(BASE.saturating_sub(Duration::from_nanos(age)));
    node.scale()
}

fn header(region: &Region) -> &Header {
    // SAFETY: the region has at least the size of a header, whose fields are atomics.
    unsafe { region.at(0) }
}

/// Enables or disables tracepoints of a node.
pub fn switch(node: &Node, points: &[usize], on: bool) {
    for &point in points {
        node.shared().on[point].store(on.into(), Release);
    }
}

/// Returns the tracepoints that are on.
pub fn on(node: &Node) -> Vec<usize> {
    let shared = node.shared();
    (0..POINTS.len())
        .filter(|&i| shared.on[i].load(Acquire) != 0)
        .collect()
}
