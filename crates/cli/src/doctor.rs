//! `forebay doctor`: whether a pool can work on this host, and if not, what to do.
//!
//! Each check is one function that returns a [`Finding`]. The last check starts a small pool, runs
//! a program in it and removes it, which finds problems that no other check knows.

mod host;
mod reach;

use crate::args::Doctor;
use crate::color::{GREEN, RED, YELLOW, painted};
use crate::fail::{Fail, code};
use crate::output::{json, write};
use serde_json::{Value, json as value};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    /// The feature works, with a restriction.
    Warning,
    /// The feature can't work.
    Missing,
}

/// One checked thing.
#[derive(Debug)]
struct Finding {
    name: &'static str,
    state: State,
    /// Whether no pool can work without it.
    needed: bool,
    /// The fact.
    found: String,
    /// The purpose for which Forebay needs it.
    why: &'static str,
    /// The remedy; empty if all is well.
    remedy: String,
}

impl Finding {
    /// The feature works.
    fn ok(name: &'static str, why: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            name,
            state: State::Ok,
            needed: false,
            found: found.into(),
            why,
            remedy: String::new(),
        }
    }

    /// A finding of a feature that works with a restriction.
    fn warns(self, remedy: impl Into<String>) -> Finding {
        self.with(State::Warning, remedy.into())
    }

    /// Some commands can't work.
    fn misses(self, remedy: impl Into<String>) -> Finding {
        self.with(State::Missing, remedy.into())
    }

    /// No pool can work.
    fn prevents(self, remedy: impl Into<String>) -> Finding {
        Finding {
            needed: true,
            ..self.misses(remedy)
        }
    }

    fn with(self, state: State, remedy: String) -> Finding {
        Finding {
            state,
            remedy,
            ..self
        }
    }

    fn word(&self) -> &'static str {
        match self.state {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Missing => "missing",
        }
    }

    fn as_json(&self) -> Value {
        value!({
            "check": self.name, "state": self.word(), "needed": self.needed, "found": self.found,
            "why": self.why, "do": self.remedy,
        })
    }

    fn in_words(&self) -> String {
        let color = match self.state {
            State::Ok => GREEN,
            State::Warning => YELLOW,
            State::Missing => RED,
        };
        let word = painted(format!("{:8}", self.word()).as_bytes(), color);
        let word = String::from_utf8_lossy(&word);
        let head = format!("{word} {:12} {}\n", self.name, self.found);
        let indent = " ".repeat(22);
        if self.remedy.is_empty() {
            format!("{head}{indent}{}\n", self.why)
        } else {
            format!("{head}{indent}{}\n{indent}do: {}\n", self.why, self.remedy)
        }
    }
}

pub fn doctor(a: &Doctor) -> Result<u8, Fail> {
    let mut findings = host::checks();
    findings.extend(reach::checks());
    findings.extend(a.hosts.iter().map(|host| reach::remote(host, &a.rsh)));
    // A trial needs memory; without what all pools need, it would say the same in other words.
    let can_work = |findings: &[Finding]| !findings.iter().any(|f| f.needed);
    let has_memory = !findings
        .iter()
        .any(|f| f.name == "memory" && f.state == State::Missing);
    if can_work(&findings) && has_memory && !a.no_trial {
        findings.push(reach::trial());
    }
    let works = can_work(&findings);
    if a.json {
        let checks: Vec<Value> = findings.iter().map(Finding::as_json).collect();
        json(&value!({ "works": works, "checks": checks }))?;
    } else {
        let mut text: String = findings.iter().map(Finding::in_words).collect();
        let verdict = match (works, findings.iter().any(|f| f.state != State::Ok)) {
            (false, _) => "no pool can work here; see the lines that say missing",
            (true, true) => "a pool can work here, with the restrictions above",
            (true, false) => "a pool can work here",
        };
        text += &format!("\n{verdict}\n");
        write(text.as_bytes())?;
    }
    Ok(if works { code::OK } else { code::FAILED })
}
