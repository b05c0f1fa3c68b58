//! Credentials, and their sources: the environment and the files of the AWS tools.
//!
//! Guarantees: a secret never appears in `Debug` output, in a message or in the arguments of a
//! process; the secret's memory is cleared when it is dropped.
//!
//! Sources, in this order: `AWS_NO_SIGN_REQUEST` (no credentials, for public buckets);
//! `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`; the profile `AWS_PROFILE`
//! (or `default`) of `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE`, by default
//! `~/.aws/credentials` and `~/.aws/config`. Not read: SSO, `credential_process`, instance
//! metadata.

use crate::error::Error;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// A text that isn't shown in output.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }

    /// Returns the text itself. For signing and headers only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// An access key.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub id: Secret,
    pub secret: Secret,
    /// The session token of temporary credentials.
    pub token: Option<Secret>,
}

impl Credentials {
    /// Returns the text with all parts of these credentials replaced. A server's message may
    /// contain them.
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let parts = [Some(&self.id), Some(&self.secret), self.token.as_ref()];
        for part in parts.into_iter().flatten() {
            // A shorter secret can't be distinguished from other text. Only test servers have such
            // secrets.
            if part.expose().len() >= 4 {
                text = text.replace(part.expose(), "(hidden)");
            }
        }
        text
    }
}

/// Settings for buckets, from the environment and files.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// None: requests aren't signed.
    pub credentials: Option<Credentials>,
    /// Whether the user wants requests without a signature.
    pub anonymous: bool,
    pub region: Option<String>,
    /// URL of the server, if it isn't AWS.
    pub endpoint: Option<String>,
    /// A file of certificates (PEM) to trust instead of the system's.
    pub certificates: Option<PathBuf>,
}

/// The sections of a file in the format of the AWS tools, with their settings.
type Sections = BTreeMap<String, BTreeMap<String, Zeroizing<String>>>;

/// Parses a file in the format of the AWS tools. Indented lines are nested settings, which aren't
/// used.
fn sections(text: &str) -> Sections {
    let mut all = Sections::new();
    let mut name = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) || line.starts_with([' ', '\t']) {
            continue;
        }
        if let Some(inner) = trimmed.strip_prefix('[').and_then(|t| t.split(']').next()) {
            let inner = inner.trim();
            let inner = inner.strip_prefix("profile ").unwrap_or(inner).trim();
            name = Some(inner.trim_matches('"').to_owned());
            continue;
        }
        let (Some(name), Some((key, value))) = (&name, trimmed.split_once('=')) else {
            continue;
        };
        let section = all.entry(name.clone()).or_default();
        let value = Zeroizing::new(value.trim().to_owned());
        section.insert(key.trim().to_lowercase(), value);
    }
    all
}

impl Settings {
    /// Reads the settings of this process's user.
    ///
    /// # Errors
    /// A message: the named profile doesn't exist, or half of a key is missing.
    pub fn read() -> Result<Settings, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let file = |name: &str, default: &str| {
            let named = variable(name).map(|file| (PathBuf::from(file), Links::Named));
            let home = || {
                Some((
                    PathBuf::from(variable("HOME")?).join(default),
                    Links::Follow,
                ))
            };
            let (path, links) = named.or_else(home)?;
            let text = untrusted::read_text(&path, links, MAX_SETTINGS);
            text.ok().map(Zeroizing::new)
        };
        Settings::from(
            &variable,
            file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
            file("AWS_CONFIG_FILE", ".aws/config"),
        )
    }

    fn from(
        variable: &dyn Fn(&str) -> Option<String>,
        credentials: Option<Zeroizing<String>>,
        config: Option<Zeroizing<String>>,
    ) -> Result<Settings, Error> {
        let named = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        let profile = named.clone().unwrap_or_else(|| "default".into());
        let parse = |text: Option<Zeroizing<String>>| text.map(|t| sections(&t));
        let (credentials, config) = (parse(credentials), parse(config));
        let of = |file: &Option<Sections>| file.as_ref()?.get(&profile).cloned();
        let (keys, config) = (of(&credentials), of(&config));
        if let (Some(named), None, None) = (&named, &keys, &config) {
            return Err(Error::Unusable(format!(
                "AWS_PROFILE is '{named}', but neither ~/.aws/credentials nor ~/.aws/config has it"
            )));
        }
        let in_files = |name: &str| {
            let both = [&keys, &config];
            let found = both.into_iter().flatten().find_map(|s| s.get(name));
            found.map(|value| value.to_string())
        };
        let yes = |v: String| !matches!(v.to_lowercase().as_str(), "0" | "no" | "false" | "off");
        let anonymous = variable("AWS_NO_SIGN_REQUEST").is_some_and(yes);
        let (id, secret) = (
            variable("AWS_ACCESS_KEY_ID"),
            variable("AWS_SECRET_ACCESS_KEY"),
        );
        let (id, secret, token) = match (id, secret) {
            (None, None) => (
                in_files("aws_access_key_id"),
                in_files("aws_secret_access_key"),
                in_files("aws_session_token"),
            ),
            (id, secret) => (id, secret, variable("AWS_SESSION_TOKEN")),
        };
        let unusable = |why: &str| Err(Error::Unusable(why.to_owned()));
        let found = match (id, secret) {
            _ if anonymous => None,
            (Some(id), Some(secret)) => Some(Credentials {
                id: Secret::new(id),
                secret: Secret::new(secret),
                token: token.map(Secret::new),
            }),
            (None, None) => None,
            (Some(_), None) => return unusable("there is an access key id, but no secret key"),
            (None, Some(_)) => return unusable("there is a secret key, but no access key id"),
        };
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
        Ok(Settings {
            credentials: found,
            anonymous,
            region: region.or_else(|| in_files("region")),
            endpoint: endpoint.or_else(|| in_files("endpoint_url")),
            certificates: variable("AWS_CA_BUNDLE")
                .or_else(|| in_files("ca_bundle"))
                .or_else(|| variable("SSL_CERT_FILE"))
                .map(PathBuf::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "AKIDEXAMPLE";
    const SECRET: &str = "wJalrXUtnFEMIK7MDENG+bPxRfiCYEXAMPLEKEY";

    fn read(variables: &[(&str, &str)], keys: &str, config: &str) -> Result<Settings, Error> {
        let find = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, v)| (*v).to_owned())
        };
        let text = |t: &str| Some(Zeroizing::new(t.to_owned()));
        Settings::from(&find, text(keys), text(config))
    }

    fn keys_of(s: &Settings) -> (&str, &str) {
        let c = s.credentials.as_ref().unwrap();
        (c.id.expose(), c.secret.expose())
    }

    #[test]
    fn the_environment_comes_before_the_files() {
        let keys = "[default]\naws_access_key_id = a\naws_secret_access_key=b\n\n[x]\n\
                    aws_access_key_id=c\naws_secret_access_key = d = e\naws_session_token=t\n";
        let config = "# c\n[default]\nregion = r1\n[profile x]\nregion=r2\n\
                      endpoint_url = http://127.0.0.1:9\ns3 =\n  region = nested\n";
        let s = read(&[], keys, config).unwrap();
        assert_eq!((keys_of(&s), s.region.as_deref()), (("a", "b"), Some("r1")));
        let s = read(&[("AWS_PROFILE", "x")], keys, config).unwrap();
        assert_eq!(
            (keys_of(&s), s.region.as_deref()),
            (("c", "d = e"), Some("r2"))
        );
        assert_eq!(s.endpoint.as_deref(), Some("http://127.0.0.1:9"));
        assert!(s.credentials.unwrap().token.is_some());
        let own = [
            ("AWS_ACCESS_KEY_ID", ID),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "r3"),
        ];
        let s = read(&own, keys, config).unwrap();
        assert_eq!(
            (keys_of(&s), s.region.as_deref()),
            ((ID, SECRET), Some("r3"))
        );
        assert!(s.credentials.unwrap().token.is_none());
        assert!(read(&own[..1], keys, config).is_err());
        assert!(read(&[("AWS_PROFILE", "y")], keys, config).is_err());
        let s = read(&[("AWS_NO_SIGN_REQUEST", "YES")], keys, config).unwrap();
        assert!(s.anonymous && s.credentials.is_none());
        assert!(read(&[], "", "").unwrap().credentials.is_none());
    }

    #[test]
    fn secrets_are_never_shown() {
        let own = [
            ("AWS_ACCESS_KEY_ID", ID),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_SESSION_TOKEN", "the-token"),
        ];
        let s = read(&own, "", "").unwrap();
        let shown = format!("{s:?} {s:#?} {:?}", s.credentials);
        let text = format!("{ID} said {SECRET} and the-token");
        let redacted = s.credentials.unwrap().redact(&text);
        for secret in [ID, SECRET, "the-token"] {
            assert!(!shown.contains(secret), "{shown}");
            assert!(!redacted.contains(secret), "{redacted}");
        }
    }
}
