//! The advisor: the rules and settings that a run suggests, with what each would save and forbid.
//!
//! A control is proposed for a pattern only if, as far as events show, the control would not have
//! refused or changed any use of a matching file in the run. A proposal's saving is an estimate
//! with its reasoning, in time summed over processes. A control that fits, but for which the run
//! shows no gain, is listed separately and isn't proposed. A run is one sample, and another run may
//! use files differently. So rules should be tried with `on_violation = "report"` first.

use crate::run::{Group, Run, Source, Verdict};
use crate::text;
use crate::usage::{LARGE, control};
use forebay_controls::{Pattern, Rules};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of proposals.
pub const MAX_PROPOSALS: usize = 60;
/// Maximum number of notes.
const MAX_NOTES: usize = 20;
/// Maximum number of bytes that are collected before writing, or read ahead, for a file with a
/// weaker consistency.
const BUFFERED_BYTES: f64 = (512u64 << 10) as f64;
/// Minimum size at which striping is proposed for a file that several nodes use. Bytes.
const WORTH_STRIPING: u64 = 64 << 20;
/// Additional cost of a request if the node keeps a copy of the bytes, as a part of a request's
/// cost. Measured with `examples/kernels/samples.c` on two cores: 70 to 100 µs of 230 to 260.
const KEEPING: f64 = 0.4;
/// Minimum share of a group's files whose use must show the pattern for which a control is meant.
const MIN_GROUP_SHARE: f64 = 0.9;
/// Number of files from which the additional step in the last close of immutable files matters.
const MANY_FILES: u64 = 1000;
/// Used share of a medium from which it counts as nearly full.
const NEARLY_FULL: f64 = 0.8;

/// The estimated saving of a proposal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// Estimated time, summed over processes. Seconds. None: no time is saved, or the time isn't
    /// known.
    pub seconds: Option<f64>,
    /// The method of the estimate, or another gain.
    pub reasoning: String,
    /// Whether the proposal saves room, in memory or in the pool.
    #[serde(default)]
    pub is_room: bool,
}

impl Saving {
    /// Whether the run shows that the proposal saves anything.
    fn is_shown(&self) -> bool {
        self.is_room || self.seconds.is_some_and(|s| s > 0.0)
    }
}

/// A proposal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Pattern of the paths to which the proposal applies.
    pub path: String,
    /// The setting: a control's name, `distribution` or `media`.
    pub control: String,
    /// The setting's value.
    pub value: String,
    /// Number of matching files of the run.
    pub files: u64,
    /// The measured pattern that suggests the proposal.
    pub why: String,
    /// Estimated saving.
    pub saves: Saving,
    /// The operations that the proposal would forbid, or the ways in which it would change them.
    pub forbids: String,
    /// A rule for a file of rules. None: the proposal isn't a control.
    pub toml: Option<String>,
    /// A command, instead of the rule, or in addition to it for files that exist.
    pub command: Option<String>,
}

/// The advisor's proposals for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Proposals. Those that save most come first.
    pub proposals: Vec<Proposal>,
    /// Controls that no use in the run contradicts, but for which the run shows no gain.
    #[serde(default)]
    pub fitting: Vec<Proposal>,
    /// Sentences about controls that weren't proposed, with the reasons.
    pub notes: Vec<String>,
}

impl Advice {
    /// Returns a file of rules with all proposals that are controls. With `report_first`,
    /// operations that the rules would refuse are carried out, and `forebay violations` lists them.
    pub fn rules(&self, report_first: bool) -> String {
        let mut by_path: BTreeMap<(usize, &str), Vec<&Proposal>> = BTreeMap::new();
        for proposal in self.proposals.iter().filter(|p| p.toml.is_some()) {
            // The last matching rule has precedence, so rules for names come after those for
            // directories.
            let order = usize::from(!proposal.path.ends_with("/**"));
            let rule = by_path.entry((order, &proposal.path)).or_default();
            rule.push(proposal);
        }
        let mut all = String::new();
        for proposals in by_path.values() {
            for proposal in proposals {
                for line in proposal.why.lines() {
                    all += &format!("# {}={}: {line}\n", proposal.control, proposal.value);
                }
            }
            let lines = proposals[0].toml.as_deref().unwrap_or("").lines();
            for line in lines.take(2) {
                all += &format!("{line}\n");
            }
            for proposal in proposals {
                all += &format!("{} = \"{}\"\n", proposal.control, proposal.value);
            }
            if report_first {
                all += "on_violation = \"report\"\n";
            }
            all.push('\n');
        }
        all
    }
}

struct Advisor<'a> {
    run: &'a Run,
    mount: &'a str,
    /// Number of nodes of the pool. None: not known.
    nodes: Option<usize>,
    /// Mean time of a request to another node. Nanoseconds.
    request: Option<f64>,
    /// Whether events are missing.
    lossy: bool,
    media: Media,
    advice: Advice,
}

/// The kinds of media that the pool has.
#[derive(Clone, Copy)]
struct Media {
    known: bool,
    memory: bool,
    files: bool,
    /// Whether memory was nearly full.
    full: bool,
}

/// Computes the advice for a run.
pub fn advise(run: &Run) -> Advice {
    let nodes = run.nodes.len().max(run.facts.nodes.len());
    let known = run.source == Source::Forebay && nodes > 0;
    let is = |kind: &str| run.facts.media.iter().any(|m| m.kind.starts_with(kind));
    let full = run.facts.media.iter().any(|m| {
        let (capacity, peak) = (m.capacity.unwrap_or(0) as f64, m.peak.unwrap_or(0) as f64);
        m.kind.starts_with("memory") && capacity > 0.0 && peak >= capacity * NEARLY_FULL
    });
    let mut advisor = Advisor {
        run,
        mount: run.facts.mount.as_deref().unwrap_or("/fb"),
        nodes: known.then_some(nodes),
        request: run.totals.requests.mean(),
        lossy: !run.lost.is_empty() || run.incomplete.iter().any(|i| i.contains("stream")),
        media: Media {
            known: !run.facts.media.is_empty(),
            memory: is("memory"),
            files: is("files"),
            full,
        },
        advice: Advice::default(),
    };
    advisor.controls();
    advisor.striping();
    advisor.media();
    advisor.finish()
}

fn verdict<'a>(group: &'a Group, control: &str) -> Option<&'a Verdict> {
    group.verdicts.get(control)
}

/// Whether no file of the group contradicts the control, and at least the part `share` of `of`
/// files shows the pattern for which the control is meant.
fn holds(group: &Group, control: &str, of: u64, share: f64) -> bool {
    verdict(group, control)
        .is_some_and(|v| v.against == 0 && v.supports > 0 && v.supports as f64 >= of as f64 * share)
}

fn seconds(nanoseconds: f64) -> f64 {
    nanoseconds / 1e9
}

impl Advisor<'_> {
    fn controls(&mut self) {
        let all = &self.run.groups;
        // If nested directories contain the same files, only the lowest is considered.
        let is_above = |a: &Group, b: &Group| {
            let dir = a.pattern.strip_suffix("**");
            let below = dir.is_some_and(|dir| b.pattern.starts_with(dir));
            b.directory && b.files == a.files && below && a.pattern != b.pattern
        };
        let lowest = |g: &&Group| !g.directory || !all.iter().any(|other| is_above(g, other));
        let mut groups: Vec<&Group> = all.iter().filter(lowest).collect();
        // Sorts groups of directories before groups of names, and outer directories before inner
        // ones.
        groups.sort_by_key(|g| (!g.directory, g.pattern.matches('/').count()));
        for group in groups {
            for control in self.choose(group) {
                let name = control.split('=').next().unwrap_or("");
                if self.is_covered(group, name) {
                    continue;
                }
                self.propose(group, control);
            }
        }
        if self.nodes == Some(1) {
            self.note(
                "consistency isn't proposed: it changes nothing in a pool of one node".into(),
            );
        }
        if self.lossy {
            self.note(
                "events are missing: consistency isn't proposed, since reads may have been missed, \
                    and rules report violations instead of refusing them".into(),
            );
        }
    }

    /// Whether a rule for a directory above the group declares the control already.
    fn is_covered(&self, group: &Group, name: &str) -> bool {
        let below = |pattern: &str| {
            Pattern::parse(pattern).is_ok_and(|pattern| {
                let names = group.example.split('/').filter(|name| !name.is_empty());
                let state = names.fold(pattern.root(), |state, name| {
                    pattern.below(state, name.as_bytes())
                });
                pattern.matches(state)
            })
        };
        self.advice
            .proposals
            .iter()
            .any(|p| p.control == name && p.path.ends_with("/**") && below(&p.path))
    }

    /// Returns the controls to propose for a group.
    fn choose(&mut self, group: &Group) -> Vec<&'static str> {
        let files = group.files;
        let most = |control: &str| holds(group, control, files, MIN_GROUP_SHARE);
        let all = |control: &str| holds(group, control, files, 1.0);
        let mut chosen = Vec::new();
        let rollback = most(control::ROLLBACK);
        if rollback {
            chosen.push(control::ROLLBACK);
        }
        let small = group.writes.bytes / files.max(1) < LARGE / 16;
        if most(control::APPEND) {
            chosen.push(control::APPEND);
        } else if most(control::IMMUTABLE) {
            if files >= MANY_FILES && small && group.nodes_of_a_file < 2 && group.created > 0 {
                self.note(format!(
                    "mutability=immutable isn't proposed for {}: {} small files that no other node \
                        reads would each take one more step at their last close",
                    group.pattern,
                    text::count(files)
                ));
            } else {
                chosen.push(control::IMMUTABLE);
            }
        }
        let names = group.remote_names >= 1.0 && group.shared_directories == 0;
        if all(control::EXCLUSIVE) {
            chosen.push(control::EXCLUSIVE);
        } else if names && all(control::EXCLUSIVE_NODE) {
            chosen.push(control::EXCLUSIVE_NODE);
        }
        let written = verdict(group, control::COMMIT).map_or(0, |v| v.supports);
        if !rollback && !self.lossy && self.nodes != Some(1) && written > 0 {
            let session = holds(group, control::SESSION, written, MIN_GROUP_SHARE);
            if session && group.reads.bytes > 0 {
                chosen.push(control::SESSION);
            } else if holds(group, control::COMMIT, written, 1.0) {
                chosen.push(control::COMMIT);
            }
        }
        if most(control::ONCE) {
            let copies = chosen.contains(&control::IMMUTABLE) && group.fetched > 0;
            if !self.media.known || self.media.files || copies {
                chosen.push(control::ONCE);
            }
        }
        if group.directory {
            self.reject(group, &chosen);
        }
        chosen
    }

    /// Records the reasons why controls that some files suggest aren't proposed.
    fn reject(&mut self, group: &Group, chosen: &[&str]) {
        for control in [control::IMMUTABLE, control::EXCLUSIVE, control::COMMIT] {
            let name = control.split('=').next().unwrap_or("");
            let Some(verdict) = verdict(group, control) else {
                continue;
            };
            if verdict.supports == 0 || verdict.against == 0 {
                continue;
            }
            if chosen.iter().any(|c| c.starts_with(name)) || self.is_covered(group, name) {
                continue;
            }
            self.note(format!(
                "{control} isn't proposed for {}: {} of {} files contradict it ({})",
                group.pattern,
                text::count(verdict.against),
                text::count(group.files),
                verdict.example.as_deref().unwrap_or("no example")
            ));
        }
    }

    fn note(&mut self, note: String) {
        if self.advice.notes.len() < MAX_NOTES && !self.advice.notes.contains(&note) {
            self.advice.notes.push(note);
        }
    }

    /// Returns a rule for a file of rules.
    fn rule(&self, pattern: &str, control: &str, value: &str) -> Option<String> {
        let mount = self.mount.trim_end_matches('/');
        // Parsing the rule removes the mount prefix from the path. So if the pattern itself begins
        // with that prefix, the prefix is added once more.
        let path = match pattern.strip_prefix(mount) {
            Some(rest) if rest.starts_with('/') => format!("{mount}{pattern}"),
            _ => pattern.to_owned(),
        };
        let mut rule = format!(
            "[[rule]]\npath = {}\n{control} = \"{value}\"\n",
            text::toml(&path)
        );
        if self.lossy {
            rule += "on_violation = \"report\"\n";
        }
        let rules = Rules::parse(&rule, self.mount).ok()?;
        (rules.all().first()?.pattern.text() == pattern).then_some(rule)
    }

    fn propose(&mut self, group: &Group, control: &str) {
        let Some((name, value)) = control.split_once('=') else {
            return;
        };
        let Some(toml) = self.rule(&group.pattern, name, value) else {
            self.note(format!(
                "{control} would fit {}, which can't be written as a rule",
                group.pattern
            ));
            return;
        };
        let (saves, why, forbids) = (
            self.saving(group, control),
            why(group, control),
            forbids(control),
        );
        let command = (group.created == 0 && name != "failure")
            .then(|| format!("forebay set FILE {control}"));
        self.advice.proposals.push(Proposal {
            path: group.pattern.clone(),
            control: name.into(),
            value: value.into(),
            files: group.files,
            why,
            saves,
            forbids: forbids.into(),
            toml: Some(toml),
            command,
        });
    }

    /// Estimates the time that `saved` fewer requests to other nodes would save.
    fn requests(&self, saved: f64, how: &str) -> Saving {
        let Some(mean) = self.request.filter(|_| saved >= 1.0) else {
            return Saving {
                is_room: false,
                seconds: None,
                reasoning: match self.run.source {
                    Source::Darshan => format!(
                        "Not known: the log doesn't say what would be asked of other nodes. {how}"
                    ),
                    Source::Forebay => format!(
                        "No time in this run: it had no requests to other nodes that this would \
                            spare. {how}"
                    ),
                },
            };
        };
        let seconds = seconds(saved * mean);
        Saving {
            is_room: false,
            seconds: Some(seconds),
            reasoning: format!(
                "About {} requests to other nodes, at {} each (the measured mean): {} summed over \
                    processes. {how}",
                text::count(saved as u64),
                text::time(mean),
                text::time(seconds * 1e9)
            ),
        }
    }

    fn saving(&self, group: &Group, control: &str) -> Saving {
        let messages = |requests: f64, mean: Option<f64>| {
            let sent = (requests * mean.unwrap_or(0.0) / BUFFERED_BYTES).ceil();
            (requests - sent).max(0.0)
        };
        let appends = holds(group, control::APPEND, group.files, MIN_GROUP_SHARE);
        let writes = if appends {
            0.0
        } else {
            messages(group.remote_writes, group.writes.mean())
        };
        match control {
            control::IMMUTABLE => {
                let fetches = (1.0 + KEEPING) * group.fetched as f64;
                let saved = (group.remote_reads - fetches).max(0.0);
                let share = group.read_again > 0;
                self.requests(
                    if share { saved } else { 0.0 },
                    &format!(
                        "A node that reads such a file of another node fetches each MiB once, for \
                            all its processes ({} here); {} were read again. Otherwise it is for \
                            safety.",
                        text::count(group.fetched),
                        text::bytes(group.read_again as f64)
                    ),
                )
            }
            control::COMMIT => self.requests(
                writes,
                &format!(
                    "About {} writes went to other nodes one by one; up to 512 KiB would go \
                        together.",
                    text::count(group.remote_writes as u64)
                ),
            ),
            control::SESSION => {
                let consecutive = group.reads.shares().map_or(0.0, |s| s[0]);
                let reads = messages(group.remote_reads * consecutive, group.reads.mean());
                self.requests(
                    writes + reads,
                    &format!(
                        "About {} writes and {} reads asked other nodes one by one; small writes \
                            would go together, and small consecutive reads be read ahead, up to \
                            512 KiB.{}",
                        text::count(group.remote_writes as u64),
                        text::count(group.remote_reads as u64),
                        if appends {
                            " Appends are sent at once all the same."
                        } else {
                            ""
                        }
                    ),
                )
            }
            control::EXCLUSIVE | control::EXCLUSIVE_NODE if group.shared_directories == 0 => self
                .requests(
                    group.remote_names,
                    "A directory that is made under such a rule keeps its names on the node that \
                        makes it. In directories that exist already it is for safety.",
                ),
            control::EXCLUSIVE | control::EXCLUSIVE_NODE => no_time(format!(
                "No time: {} used on several nodes, so the names can't stay on one. It is for \
                    safety.",
                match group.shared_directories {
                    1 => "a directory was".to_owned(),
                    n => format!("{} directories were", text::count(n)),
                }
            )),
            control::ONCE => Saving {
                seconds: None,
                is_room: self.media.files && group.reads.bytes > 0,
                reasoning: format!(
                    "Memory: the kernel doesn't keep {} of files media in its page cache, and \
                        other nodes keep no copies.",
                    text::bytes(group.reads.bytes as f64)
                ),
            },
            control::APPEND => no_time("No time: it is for safety.".into()),
            _ => no_time(
                "No time: after a crash, all of a batch's writes are there or none. It needs the \
                    verbs (batches with rollback), and changes nothing for plain system calls."
                    .into(),
            ),
        }
    }

    /// Proposes striping for large files that several nodes use.
    fn striping(&mut self) {
        let remote = |g: &Group| {
            self.run.source == Source::Darshan || g.remote_reads + g.remote_writes >= 1.0
        };
        let mut found = Vec::new();
        for group in self.run.groups.iter().filter(|g| !g.directory) {
            let shared = group.nodes_of_a_file > 1
                || (self.run.source == Source::Darshan && group.processes_of_a_file > 1);
            if group.largest >= WORTH_STRIPING && shared && remote(group) {
                found.push(group.clone());
            }
        }
        for group in found {
            let dir = group.pattern.rsplit_once('/').map_or("", |(dir, _)| dir);
            let dir = if dir.is_empty() { "/" } else { dir };
            if self
                .advice
                .proposals
                .iter()
                .any(|p| p.control == "distribution" && p.path == dir)
            {
                continue;
            }
            let mut all = group.reads.clone();
            all.add(&group.writes);
            let mean = all.mean().unwrap_or(0.0) as u64;
            let chunk = mean.next_power_of_two().clamp(1 << 20, 16 << 20) >> 20;
            let plain = !has_wildcard(dir);
            let nodes = self.nodes.unwrap_or(group.nodes_of_a_file as usize).max(2);
            let time = all.nanoseconds as f64 * (1.0 - 1.0 / nodes as f64);
            self.advice.proposals.push(Proposal {
                path: dir.to_owned(),
                control: "distribution".into(),
                value: format!("striped, chunks of {chunk}M"),
                files: group.files,
                why: format!(
                    "Files such as {} have up to {} and are used by up to {}{} each, with \
                        operations of {} in the mean; by default all bytes of a file lie on one \
                        node.",
                    group.example,
                    text::bytes(group.largest as f64),
                    text::several(group.processes_of_a_file, "process", "processes"),
                    match group.nodes_of_a_file {
                        0 => String::new(),
                        n => format!(" on {}", text::several(n, "node", "nodes")),
                    },
                    text::bytes(mean as f64)
                ),
                saves: Saving {
                    is_room: false,
                    seconds: Some(seconds(time)).filter(|s| *s > 0.0),
                    reasoning: format!(
                        "At most {}: reads and writes took {} summed over processes, and {nodes} \
                            nodes could serve them instead of one, if that one was the \
                            bottleneck.",
                        text::time(time),
                        text::time(all.nanoseconds as f64)
                    ),
                },
                forbids: "Nothing. Files that one node uses alone become slower there, since most \
                    of their chunks lie on others."
                    .into(),
                toml: None,
                command: plain.then(|| {
                    format!(
                        "forebay set --distribution striped --chunk-size {chunk}M {}",
                        text::shell(&unescaped(dir))
                    )
                }),
            });
        }
    }

    /// Proposes other media if those of the run are too small, or of the wrong kind.
    fn media(&mut self) {
        if !self.media.full {
            return;
        }
        if !self.media.files {
            self.advice.proposals.push(Proposal {
                path: "/**".into(),
                control: "media".into(),
                value: "files behind memory".into(),
                files: self.run.file_count(),
                why: format!(
                    "Memory media were used up to {} or more, and there are no \
                    others.",
                    text::percent(NEARLY_FULL)
                ),
                saves: Saving {
                    is_room: true,
                    seconds: None,
                    reasoning: "Room: when memory is full, writes go on in files instead of \
                        failing with ENOSPC."
                        .into(),
                },
                forbids: "Nothing. What lies in files is as fast as the file system below.".into(),
                toml: None,
                command: Some("forebay up --media memory:SIZE --media files:DIRECTORY:SIZE".into()),
            });
            return;
        }
        if !self.media.memory {
            return;
        }
        let mut found = Vec::new();
        for group in self.run.groups.iter().filter(|g| g.directory) {
            let closed = holds(group, control::IMMUTABLE, group.files, MIN_GROUP_SHARE)
                || holds(group, control::APPEND, group.files, MIN_GROUP_SHARE);
            if closed && group.largest >= LARGE && group.reads.bytes < group.writes.bytes {
                found.push(group.clone());
            }
        }
        for group in found {
            let covered = self.is_covered(&group, "temporality");
            let Some(toml) = self.rule(&group.pattern, "temporality", "bursty") else {
                continue;
            };
            if covered
                || self
                    .advice
                    .proposals
                    .iter()
                    .any(|p| p.control == "temporality" && p.path == group.pattern)
            {
                continue;
            }
            self.advice.proposals.push(Proposal {
                path: group.pattern.clone(),
                control: "temporality".into(),
                value: "bursty".into(),
                files: group.files,
                why: format!(
                    "Memory media were nearly full. {} were written to {} and closed, and {} were \
                        read back.",
                    text::bytes(group.writes.bytes as f64),
                    text::several(group.files, "file", "files"),
                    text::bytes(group.reads.bytes as f64)
                ),
                saves: Saving {
                    is_room: true,
                    seconds: None,
                    reasoning: format!(
                        "Memory: up to {} move to files media once nobody has them \
                        open, so that the next burst finds \
                        room.",
                        text::bytes(group.writes.bytes as f64)
                    ),
                },
                forbids: "Nothing. Reading such a file later is as fast as files media are.".into(),
                toml: Some(toml),
                command: None,
            });
        }
    }

    fn finish(mut self) -> Advice {
        (self.advice.proposals, self.advice.fitting) =
            (self.advice.proposals.into_iter()).partition(|proposal| proposal.saves.is_shown());
        self.advice.fitting.truncate(MAX_PROPOSALS);
        let worth = |p: &Proposal| p.saves.seconds.unwrap_or(0.0);
        self.advice
            .proposals
            .sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        let more = self.advice.proposals.len().saturating_sub(MAX_PROPOSALS);
        if more > 0 {
            self.advice.proposals.truncate(MAX_PROPOSALS);
            self.advice
                .notes
                .push(format!("{more} more proposals were left out"));
        }
        self.advice
    }
}

/// Returns "The file was", or "Each of 12 files was".
fn each(n: u64) -> String {
    match n {
        1 => "The file was".into(),
        n => format!("Each of {} files was", text::count(n)),
    }
}

/// Describes the measured pattern that suggests a control.
fn why(group: &Group, control: &str) -> String {
    let each = each(group.files);
    let written = text::bytes(group.writes.bytes as f64);
    let read = text::bytes(group.reads.bytes as f64);
    let opens = text::several(group.opens, "open", "opens");
    match control {
        control::IMMUTABLE if group.writes.count == 0 => format!(
            "{each} only read: {read} in {opens}{}.",
            match group.nodes {
                0 => String::new(),
                n => format!(" on {}", text::several(n, "node", "nodes")),
            }
        ),
        control::IMMUTABLE => format!(
            "{each} written by one process ({written} in all), closed, and never opened for \
                writing again; {read} were read."
        ),
        control::APPEND => format!(
            "{each} only written to at its end, by {} ({written}).",
            text::several(group.writes.count, "write", "writes")
        ),
        control::EXCLUSIVE => format!(
            "{each} open in one process at a time, in {opens}, and handed on to another one at \
                most once."
        ),
        control::EXCLUSIVE_NODE => format!("{each} used on one node only, in {opens}."),
        control::COMMIT => format!(
            "{each} written by up to {} ({written} in all), of which no two wrote the same bytes \
                meanwhile, and nobody else read it while a writer had it open.",
            text::several(group.processes_of_a_file, "process", "processes")
        ),
        control::SESSION => format!(
            "{each} written by one process at a time ({written} in all), and whoever read it \
                ({read}) had opened it after the writer had closed it."
        ),
        control::ONCE => format!(
            "{each} written once and read at most once, byte by byte ({written} written, {read} \
                read)."
        ),
        _ => format!(
            "{each} written at the same few places again and again, by {} of {} in the mean: \
                updates in place that may belong together.",
            text::several(group.writes.count, "write", "writes"),
            text::bytes(group.writes.mean().unwrap_or(0.0))
        ),
    }
}

/// Returns a sentence about the operations that a control forbids or changes.
fn forbids(control: &str) -> &'static str {
    match control {
        control::IMMUTABLE => {
            "Opening a file for writing (EPERM) once it isn't empty and its last writer has closed \
                it, also to truncate it. Removing and renaming stay possible."
        }
        control::APPEND => {
            "A write that doesn't begin at the end, cutting, an open with O_TRUNC, a hole, a \
                shared mapping for writing (EPERM)."
        }
        control::EXCLUSIVE => {
            "Any open of a file that another process has open (EBUSY), also for reading: tail, cat \
                and monitors, too."
        }
        control::EXCLUSIVE_NODE => {
            "Any open of a file that a process of another node has open (EBUSY), also for reading."
        }
        control::COMMIT => {
            "Nothing. Programs on other nodes may see writes only after the writer's fsync or \
                close; a killed writer loses what it hadn't committed."
        }
        control::SESSION => {
            "Nothing. Programs on other nodes may see writes only when they open the file after \
                the writer's fsync or close; a killed writer loses what it hadn't committed."
        }
        control::ONCE => {
            "Nothing. Reading a file of files media again goes to the disk again; other nodes keep \
                no copies."
        }
        _ => "Nothing. A batch takes more time, since it keeps what it overwrites.",
    }
}

fn has_wildcard(pattern: &str) -> bool {
    let mut escaped = false;
    pattern.chars().any(|c| {
        let wild = !escaped && "*?[{".contains(c);
        escaped = c == '\\' && !escaped;
        wild
    })
}

fn unescaped(pattern: &str) -> String {
    let mut plain = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.extend(chars.next()),
            c => plain.push(c),
        }
    }
    plain
}

fn no_time(reasoning: String) -> Saving {
    Saving {
        is_room: false,
        seconds: None,
        reasoning,
    }
}
