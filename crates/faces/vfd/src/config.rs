//! Parses file names and the driver's configuration string.
//!
//! The configuration is a list of optional parts with `;` between them, such as
//! `pool=NAME;controls=mutability=immutable,consistency=commit`. A file's name is
//! `forebay://POOL/path`, `forebay:///path` (in the configured pool), or a path of the host. A path
//! under the pool's prefix (`/fb/case/mesh.h5`) is in the pool.

use forebay_controls::Declared;

/// Prefix of names that are in a pool.
pub const SCHEME: &str = "forebay://";

/// The driver's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The pool's name; None: the name in `$FOREBAY_POOL`, else `default`.
    pub pool: Option<String>,
    /// The controls to declare for new files.
    pub controls: Option<Declared>,
}

impl Config {
    /// Parses the configuration.
    ///
    /// # Errors
    /// A sentence that names the part which can't be parsed.
    pub fn parse(text: &str) -> Result<Config, String> {
        let mut config = Config::default();
        for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' in '{text}': no '='; pool=NAME;controls=..."))?;
            let value = value.trim();
            match key.trim() {
                "pool" if config.pool.is_none() => config.pool = Some(value.to_owned()),
                "controls" if config.controls.is_none() => {
                    let controls = value
                        .parse()
                        .map_err(|e| format!("controls '{value}': {e}"))?;
                    config.controls = Some(controls);
                }
                "pool" | "controls" => return Err(format!("'{key}' is given twice in '{text}'")),
                other => return Err(format!("'{other}' in '{text}' isn't known: pool, controls")),
            }
        }
        Ok(config)
    }
}

/// The location of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In the named pool (None: the configured one), at a path inside it.
    Pool(Option<String>, String),
    /// At a path of the host. The path may be under a pool's prefix.
    Host(String),
}

impl Place {
    /// Parses a file name.
    ///
    /// # Errors
    /// A sentence, for a URL without a path.
    pub fn of(name: &str) -> Result<Place, String> {
        let Some(rest) = name.strip_prefix(SCHEME) else {
            return Ok(Place::Host(name.to_owned()));
        };
        match rest.split_once('/') {
            Some((pool, path)) if !path.is_empty() => {
                let pool = (!pool.is_empty()).then(|| pool.to_owned());
                Ok(Place::Pool(pool, format!("/{path}")))
            }
            _ => Err(format!("'{name}': there is no path; forebay://POOL/PATH")),
        }
    }

    /// Returns the path inside a pool that programs see at `mount`; None if `path` isn't below
    /// `mount`.
    pub fn below<'a>(path: &'a str, mount: &str) -> Option<&'a str> {
        let rest = path.strip_prefix(mount.trim_end_matches('/'))?;
        rest.starts_with('/').then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        let config =
            Config::parse(" pool = a ; controls=mutability=append,temporality=once;").unwrap();
        assert_eq!(config.pool.as_deref(), Some("a"));
        assert!(config.controls.is_some());
        for (wrong, word) in [
            ("pool", "no '='"),
            ("colour=red", "colour"),
            ("controls=colour=red", "colour"),
            ("pool=a;pool=b", "twice"),
        ] {
            let error = Config::parse(wrong).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn names() {
        let pool = |p: Option<&str>, path: &str| Place::Pool(p.map(str::to_owned), path.to_owned());
        assert_eq!(
            Place::of("forebay://a/b/c.h5").unwrap(),
            pool(Some("a"), "/b/c.h5")
        );
        assert_eq!(Place::of("forebay:///c.h5").unwrap(), pool(None, "/c.h5"));
        assert_eq!(
            Place::of("/fb/c.h5").unwrap(),
            Place::Host("/fb/c.h5".into())
        );
        assert!(Place::of("forebay://a").is_err() && Place::of("forebay://a/").is_err());
        assert_eq!(Place::below("/fb/c.h5", "/fb"), Some("/c.h5"));
        assert_eq!(Place::below("/fbx/c.h5", "/fb"), None);
    }
}
