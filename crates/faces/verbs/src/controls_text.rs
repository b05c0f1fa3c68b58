//! Controls as texts: `mutability=append,temporality=once`. Controls that aren't named have their
//! defaults. C interfaces pass controls as texts, so that a library can name a control that it
//! doesn't know when it refuses it; an unknown bit has no name.

use crate::{Error, Result};
use forebay_controls::Controls;
use serde_json::{Map, Value};

/// Parses controls.
///
/// # Errors
/// EINVAL for an unknown control, or an invalid value of one.
pub fn read_controls(text: &str) -> Result<Controls> {
    let mut declared = Map::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let wrong = |why: &str| Error::invalid(format!("'{part}' in the controls '{text}': {why}"));
        let (name, value) = part.split_once('=').ok_or_else(|| wrong("no '='"))?;
        let value = Value::String(value.trim().into());
        if declared.insert(name.trim().into(), value).is_some() {
            return Err(wrong("declared twice"));
        }
    }
    let controls = serde_json::from_value(Value::Object(declared));
    controls.map_err(|e| Error::invalid(format!("the controls '{text}': {e}")))
}

/// Formats the controls that differ from the defaults.
pub fn write_controls(controls: &Controls) -> String {
    let fields = |controls: &Controls| match serde_json::to_value(controls) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let strict = fields(&Controls::default());
    let declared = fields(controls)
        .into_iter()
        .filter(|(name, value)| strict.get(name) != Some(value))
        .filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
    declared.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_controls::{Mutability, Temporality};

    #[test]
    fn formatted_controls_are_parsed_again() {
        assert_eq!(read_controls("").unwrap(), Controls::default());
        assert_eq!(write_controls(&Controls::default()), "");
        let declared = read_controls(" mutability=append, temporality = once ,").unwrap();
        let meant = Controls {
            mutability: Mutability::Append,
            temporality: Temporality::Once,
            ..Controls::default()
        };
        assert_eq!(declared, meant);
        assert_eq!(
            write_controls(&declared),
            "mutability=append,temporality=once"
        );
        for (wrong, word) in [
            ("append", "no '='"),
            ("mutability=soft", "soft"),
            ("colour=red", "colour"),
            ("mutability=append,mutability=append", "twice"),
        ] {
            let error = read_controls(wrong).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
