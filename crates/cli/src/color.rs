//! Colours on the standard output, as `--color` chooses.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    // The values have no help texts: with them, clap would print every command's options in long
    // form.
    #[default]
    Auto,
    Always,
    Never,
}

/// Colours, as parameters of the terminal's SGR escape sequence.
pub const GREEN: &str = "32";
pub const YELLOW: &str = "33";
pub const RED: &str = "1;31";
pub const BLUE: &str = "1;34";
pub const CYAN: &str = "1;36";
pub const BOLD_GREEN: &str = "1;32";

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Sets whether the standard output has colours.
pub fn choose(color: Color) {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_on = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => std::io::stdout().is_terminal() && !is_set("NO_COLOR"),
    };
    IS_ON.store(is_on, Relaxed);
}

/// Returns the text with escape sequences for a colour, if the output has colours.
pub fn painted(text: &[u8], sgr: &str) -> Vec<u8> {
    if IS_ON.load(Relaxed) {
        [b"\x1b[", sgr.as_bytes(), b"m", text, b"\x1b[0m"].concat()
    } else {
        text.to_vec()
    }
}
