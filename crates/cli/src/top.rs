//! `forebay top`: one screen about a pool, refreshed each second.
//!
//! [`collect`] gathers figures on threads of its own, so that a silent host freezes nothing.
//! [`view`] computes rates from the figures that are [`known`]. [`draw`] and [`panels`] turn a view
//! into a screen of any size, and [`terminal`] reads keys and shows the screen. Files and
//! directories come from three tracepoints ([`rings`], [`files`], [`names`]). The tracepoints are
//! on only while the screen shows files; the end of the command switches them off, unless SIGKILL
//! ends it.

mod collect;
mod draw;
mod files;
mod known;
mod names;
mod panels;
mod rings;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use crate::fail::{Fail, code};
use crate::output::{print_notice, write};
use crate::trace::{end_by_signals, ended_by_signal};
use crate::trace_args::Top;
use collect::Collector;
use draw::Look;
use known::Known;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use view::View;

/// Default size of the screen of `--once`. Columns and lines.
const SIZE: (u16, u16) = (100, 30);
/// How long `--once` waits beyond its interval for silent nodes and hosts.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

pub fn top(pool: &str, a: &Top) -> Result<u8, Fail> {
    if !a.once && !std::io::stdout().is_terminal() {
        return Err(Fail::usage(
            "the standard output is no terminal: use forebay top --once for one screen as text, or \
             forebay stats --watch",
        ));
    }
    end_by_signals();
    terminal::install_panic_hook();
    let every = Duration::from_secs_f64(a.every);
    let collector = Collector::begin(pool, every, a.files)?;
    let look = Look {
        files: a.files,
        processes: a.processes,
        plain: a.once,
        ..Look::default()
    };
    let shown = if a.once {
        once(&collector, look, a).map(|()| None)
    } else {
        terminal::show(&collector, look)
    };
    collector.end();
    rings::end();
    if let Some(words) = shown? {
        print_notice(words);
    }
    Ok(code::OK)
}

/// Whether all data for a screen are there, or known to be missing.
fn is_complete(known: &Known, files: bool) -> bool {
    let has_told = |s: &known::Source| s.before.is_some() || s.failed.is_some();
    (known.survey.is_some() || known.failed.is_some())
        && known.sources.values().all(has_told)
        && (!files || known.hot.is_some())
}

/// Prints one screen.
fn once(collector: &Collector, look: Look, a: &Top) -> Result<(), Fail> {
    let until = Instant::now() + Duration::from_secs_f64(a.every) + ANSWER_TIMEOUT;
    let view = loop {
        let known = collector.known();
        if let Some(gone) = &known.gone {
            return Err(Fail::new(code::NO_POOL, gone));
        }
        if is_complete(&known, a.files) || Instant::now() >= until {
            break View::of(&known, Instant::now());
        }
        drop(known);
        if ended_by_signal() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut view = view;
    view.sort(look.sort);
    let (width, height) = (a.width.unwrap_or(SIZE.0), a.height.unwrap_or(SIZE.1));
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw::draw(&view, &look, Instant::now(), &mut buffer);
    let mut text = draw::lines(&buffer).join("\n");
    text.truncate(text.trim_end().len());
    write((text + "\n").as_bytes())
}
