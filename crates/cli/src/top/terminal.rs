//! The terminal of top: raw mode and the alternate screen while it runs, and their restoration.
//!
//! [`restore`] is called at the end, after an error, and by the hook for panics, which runs also in
//! builds whose panics abort. Signals only end the loop ([`crate::trace::end_by_signals`]).

use super::collect::Collector;
use super::draw::{Look, draw};
use super::rings;
use super::view::View;
use crate::fail::{Fail, code};
use crate::trace::ended_by_signal;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{IsTerminal, Stdout};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};
use std::time::{Duration, Instant};

/// Maximum wait for a key. After each wait, signals and new figures are checked.
const STEP: Duration = Duration::from_millis(50);
/// Interval at which the age of the figures is redrawn.
const REDRAW: Duration = Duration::from_secs(1);

/// Whether the terminal is in raw mode.
static RAW: AtomicBool = AtomicBool::new(false);

/// A duplicate of the standard error output while that is redirected; -1 otherwise.
static STDERR: AtomicI32 = AtomicI32::new(-1);

/// Redirects the standard error output, if it is a terminal, to /dev/null: messages of the pool's
/// library (a silent node, for example) would damage the screen, which shows the same facts.
fn put_stderr_aside() {
    if !std::io::stderr().is_terminal() {
        return;
    }
    // SAFETY: system calls with a constant path, on descriptors that this function opens.
    unsafe {
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        let kept = libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3);
        if nowhere >= 0 && kept >= 0 {
            STDERR.store(kept, Release);
            libc::dup2(nowhere, 2);
            libc::close(nowhere);
        }
    }
}

/// Restores the terminal's state, once. Ignores errors: the terminal may be closed.
fn restore() {
    let kept = STDERR.swap(-1, AcqRel);
    if kept >= 0 {
        // SAFETY: [`put_stderr_aside`] opened `kept`; after the swap, no other thread closes it.
        unsafe {
            libc::dup2(kept, 2);
            libc::close(kept);
        }
    }
    if RAW.swap(false, AcqRel) {
        let _ = execute!(std::io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Restores the terminal when it is dropped.
struct Screen;

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes a panic restore the terminal and switch off the tracepoints before its message is printed.
pub fn install_panic_hook() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        rings::end();
        restore();
        before(panic);
    }));
}

/// Clears the screen, and makes the next drawing redraw all of it. (`Terminal::clear` would ask the
/// terminal for its cursor position, and not all terminals answer.)
fn clear(terminal: &mut Terminal<CrosstermBackend<Stdout>>) -> std::io::Result<()> {
    let size = terminal.size()?;
    terminal.resize(Rect::new(0, 0, size.width, size.height))
}

/// Ends the process when its terminal is closed: crossterm would read from it for ever, and ignore
/// its own timeout and our signals.
fn watch_for_hangup() -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("top-terminal".into());
    let watch = || {
        loop {
            let out = std::io::stdout();
            // A hang-up is reported even if no event is requested.
            let mut terminal = [PollFd::new(&out, PollFlags::empty())];
            let polled = poll(&mut terminal, None);
            let is_gone = terminal[0]
                .revents()
                .intersects(PollFlags::HUP | PollFlags::ERR);
            match polled {
                Ok(_) if is_gone => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
        rings::end();
        std::process::exit(code::FAILED.into());
    };
    thread.spawn(watch).map(drop)
}

/// What to do after a key.
enum Next {
    GoOn,
    Clear,
    End,
}

fn press(key: KeyEvent, look: &mut Look, collector: &Collector) -> Next {
    if key.kind == KeyEventKind::Release {
        return Next::GoOn;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => return Next::End,
        KeyCode::Char('l') if control => return Next::Clear,
        KeyCode::Char('q') | KeyCode::Esc if !look.help => return Next::End,
        _ if look.help => look.help = false,
        KeyCode::Char('s') => look.sort = look.sort.next(),
        KeyCode::Char('p') => look.processes = !look.processes,
        KeyCode::Char('f') => {
            look.files = !look.files;
            collector.show_files(look.files);
        }
        KeyCode::Char(' ') => look.paused = !look.paused,
        KeyCode::Char('?' | 'h') => look.help = true,
        _ => {}
    }
    Next::GoOn
}

/// Shows the screen until a key, a signal or the end of the pool ends it. Returns a last message
/// for the user, if there is one.
///
/// # Errors
/// If the terminal can't be read or written.
pub fn show(collector: &Collector, mut look: Look) -> Result<Option<String>, Fail> {
    let failed = |e: std::io::Error| Fail::new(code::FAILED, format!("the terminal: {e}"));
    watch_for_hangup().map_err(failed)?;
    let _screen = Screen;
    put_stderr_aside();
    enable_raw_mode().map_err(failed)?;
    RAW.store(true, Release);
    execute!(std::io::stdout(), EnterAlternateScreen).map_err(failed)?;
    let mut terminal = Terminal::new(CrosstermBackend::new(std::io::stdout())).map_err(failed)?;
    clear(&mut terminal).map_err(failed)?;
    let (mut view, mut version, mut drawn) = (View::default(), None, None::<Instant>);
    while !ended_by_signal() {
        // A thread that panics restores the terminal. (In released builds, a panic ends the
        // process.)
        if !RAW.load(Acquire) {
            return Err(Fail::failed("a thread failed"));
        }
        let known = collector.known();
        if known.gone.is_some() {
            return Ok(known.gone.clone());
        }
        if !look.paused && version != Some(known.version) {
            version = Some(known.version);
            view = View::of(&known, Instant::now());
            drawn = None;
        }
        drop(known);
        if drawn.is_none_or(|at| at.elapsed() >= REDRAW) {
            let now = Instant::now();
            view.sort(look.sort);
            terminal
                .draw(|frame| draw(&view, &look, now, frame.buffer_mut()))
                .map_err(failed)?;
            drawn = Some(now);
        }
        if !event::poll(STEP).map_err(failed)? {
            continue;
        }
        drawn = None;
        if let Event::Key(key) = event::read().map_err(failed)? {
            match press(key, &mut look, collector) {
                Next::GoOn => {}
                Next::Clear => clear(&mut terminal).map_err(failed)?,
                Next::End => return Ok(None),
            }
        }
    }
    Ok(None)
}
