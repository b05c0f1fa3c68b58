//! `forebay doctor`: checks whether a pool can work on this host; if not, says what to do.
//!
//! Each check is one function that returns a [`Finding`]. The last check, the trial, starts a small
//! pool, runs a program in it and removes it. The trial finds problems that no other check looks
//! for.

mod host;
mod reach;

use crate::args::Doctor;
use crate::color::{GREEN, RED, YELLOW, painted};
use crate::fail::{Fail, code};
use crate::output::{json, write};
use serde_json::{Value, json as value};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    /// The feature works, with a restriction.
    Warning,
    /// The feature can't work.
    Missing,
}

/// The result of one check.
#[derive(Debug)]
struct Finding {
    name: &'static str,
    state: State,
    /// Whether no pool can work while this check fails.
    needed: bool,
    /// The fact that was found.
    found: String,
    /// Why Forebay needs the feature.
    why: &'static str,
    /// What to do; empty if all is well.
    remedy: String,
}

impl Finding {
    /// Returns a finding that all is well.
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

    /// Turns the finding into a warning: the feature works with a restriction.
    fn warns(self, remedy: impl Into<String>) -> Finding {
        self.with(State::Warning, remedy.into())
    }

    /// Turns the finding into a failure with which most pools still work, but some commands don't.
    fn misses(self, remedy: impl Into<String>) -> Finding {
        self.with(State::Missing, remedy.into())
    }

    /// Turns the finding into a failure with which no pool can work.
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
    // The trial needs memory. If something that all pools need is missing, the trial would only
    // fail for the same reason.
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
