//! Findings of a check: sentences that name the fault, its place, and what to do.

use std::fmt;

/// Maximum number of findings that are listed. Further ones are only counted.
const MAX_LISTED: usize = 1000;

/// A contradiction in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which part of the store: `names`, `files`, `space`, `control`, `records`,
    /// `index`.
    pub part: &'static str,
    /// The fault, and its place.
    pub what: String,
    /// The action of a repair, or what the user has to do.
    pub remedy: String,
    /// Whether the remedy has been applied.
    pub repaired: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.repaired { "repaired: " } else { "" };
        write!(f, "{}: {}; {how}{}", self.part, self.what, self.remedy)
    }
}

/// The findings of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Number of findings beyond those that are listed.
    pub more: u64,
    /// Number of objects and entries that were checked.
    pub objects: u64,
    pub entries: u64,
    /// Number of processes that used the store during the check.
    pub others: usize,
    /// Parts of the store that weren't checked, with the reason.
    pub left_out: Option<String>,
    /// Number of pages of sound record files that are neither in use nor free: room of 4 KiB each
    /// that a killed process has left. Not a finding, since nothing is damaged.
    pub lost_pages: u64,
    /// Number of records that weren't compared with the other node that they concern, since the
    /// time for requests was over. Not a finding.
    pub unasked: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Adds the findings of a check of another store.
    pub fn join(&mut self, other: Report) {
        self.more += other.more;
        self.findings.extend(other.findings);
        self.objects += other.objects;
        self.entries += other.entries;
        self.others += other.others;
        self.lost_pages += other.lost_pages;
        self.unasked += other.unasked;
        self.left_out = self.left_out.take().or(other.left_out);
    }

    pub fn add(&mut self, part: &'static str, what: String, remedy: impl Into<String>) {
        if self.findings.len() < MAX_LISTED {
            self.findings.push(Finding {
                part,
                what,
                remedy: remedy.into(),
                repaired: false,
            });
        } else {
            self.more += 1;
        }
    }
}
