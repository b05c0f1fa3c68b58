//! Reads and checks files of path rules (`--rules`).

use crate::fail::Fail;
use forebay_client::controls::Rules;
use forebay_client::impossible;
use forebay_media::MediumSpec;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use std::path::Path;

/// Reads the rules in `file`; returns none without a file. `mount` is the pool's prefix.
///
/// # Errors
/// The first invalid rule, with line and column.
pub fn read(file: Option<&Path>, mount: &str) -> Result<Rules, Fail> {
    let Some(file) = file else {
        return Ok(Rules::default());
    };
    let shown = file.display();
    let text = untrusted::read_text(file, Links::Named, MAX_SETTINGS)
        .map_err(|e| Fail::usage(format!("can't read the rules in {shown}: {e}")))?;
    Rules::parse(&text, mount).map_err(|e| Fail::usage(format!("{shown}, {e}")))
}

/// Like [`read`], for a pool with these media, and with or without an origin.
///
/// # Errors
/// As for [`read`]; also a rule that such a pool can't obey.
pub fn read_for(
    file: Option<&Path>,
    mount: &str,
    media: &[MediumSpec],
    has_origin: bool,
) -> Result<Rules, Fail> {
    let rules = read(file, mount)?;
    for rule in rules.all() {
        if let Some(why) = impossible(&rule.controls.resolve(), media, has_origin) {
            return Err(Fail::usage(format!(
                "{}, line {}: {why}",
                file.unwrap_or(Path::new("")).display(),
                rule.line
            )));
        }
    }
    Ok(rules)
}
