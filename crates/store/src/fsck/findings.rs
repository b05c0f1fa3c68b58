//! What a check has found: sentences that say what is wrong, where, and what to do.

use std::fmt;

/// After so many findings no more are listed, only counted.
const MAX_LISTED: usize = 1000;

/// Something in a store that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which part of the store: `names`, `files`, `space`, `control`, `records`,
    /// `index`.
    pub part: &'static str,
    /// What is wrong, and where.
    pub what: String,
    /// What a repair does about it, or what else is to be done.
    pub remedy: String,
    /// Whether that has been done.
    pub repaired: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.repaired { "repaired: " } else { "" };
        write!(f, "{}: {}; {how}{}", self.part, self.what, self.remedy)
    }
}

/// What a check has found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Findings beyond those that are listed.
    pub more: u64,
    /// Objects and entries that were looked at.
    pub objects: u64,
    pub entries: u64,
    /// Processes that used the store meanwhile.
    pub others: usize,
    /// What couldn't be compared, and why.
    pub left_out: Option<String>,
    /// Pages of sound record files that are neither in use nor free: room that a killed process has
    /// left, 4 KiB each. No finding: nothing is damaged.
    pub lost_pages: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Takes in what a check of another store has found.
    pub fn join(&mut self, other: Report) {
        self.more += other.more;
        self.findings.extend(other.findings);
        self.objects += other.objects;
        self.entries += other.entries;
        self.others += other.others;
        self.lost_pages += other.lost_pages;
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
