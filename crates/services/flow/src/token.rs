//! Tokens: `fbf_ID_SECRET`. Only a token's SHA-256 is stored, in a file of the state directory. The
//! file is read for each request, so that a revoked token is refused at once.

use crate::names::check_user;
use crate::{Result, disk, now};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const PREFIX: &str = "fbf_";
/// Lengths of an id and of a secret. Bytes, before encoding.
const ID: usize = 8;
const SECRET: usize = 32;
/// Maximum length of a token's text. Bytes.
const MAX_TOKEN_BYTES: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Permits reading workflows, files, runs and logs.
    Read,
    /// Permits making and deleting workflows, uploading and deleting files.
    Write,
    /// Permits starting and cancelling runs.
    Start,
    /// Permits approving rules.
    Approve,
}

pub const SCOPES: [Scope; 4] = [Scope::Read, Scope::Write, Scope::Start, Scope::Approve];

impl Scope {
    pub fn word(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Start => "start",
            Scope::Approve => "approve",
        }
    }

    /// Parses a list of scopes: `read,write`.
    ///
    /// # Errors
    /// A message: a word isn't a scope.
    pub fn parse_list(text: &str) -> Result<Vec<Scope>> {
        let mut all = Vec::new();
        for word in text.split(',').map(str::trim) {
            let scope = SCOPES.into_iter().find(|s| s.word() == word);
            all.push(scope.ok_or_else(|| {
                format!("'{word}' is no scope: write some of read,write,start,approve")
            })?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub id: String,
    pub user: String,
    pub scopes: Vec<Scope>,
    /// Times in seconds since 1970.
    pub created: u64,
    pub expires: u64,
    /// SHA-256 of the token's whole text, in hexadecimal digits.
    pub hash: String,
}

/// Makes a token that is valid for this many seconds. Returns the token with its text. The text
/// isn't stored anywhere.
///
/// # Errors
/// The user's name is invalid; the token's file can't be written.
pub fn make(state: &Path, user: &str, scopes: &[Scope], seconds: u64) -> Result<(Token, String)> {
    check_user(user)?;
    let dir = state.join("tokens");
    disk::make_dir(&dir, 0o700)?;
    let (id, secret) = (hex(&random::<ID>()?), random::<SECRET>()?);
    let text = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
    let token = Token {
        user: user.to_owned(),
        scopes: scopes.to_vec(),
        created: now(),
        expires: now().saturating_add(seconds),
        hash: hash(&text),
        id,
    };
    disk::save(&path(state, &token.id), &token)?;
    Ok((token, text))
}

/// Returns all tokens, including those that have expired.
///
/// # Errors
/// The directory or a token can't be read.
pub fn list(state: &Path) -> Result<Vec<Token>> {
    let dir = state.join("tokens");
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for id in disk::names(&dir)? {
        all.extend(disk::load(&path(state, &id))?);
    }
    Ok(all)
}

/// Revokes a token.
///
/// # Errors
/// No token has this id.
pub fn revoke(state: &Path, id: &str) -> Result<()> {
    let known = list(state)?.into_iter().any(|t| t.id == id);
    if known {
        disk::remove(&path(state, id))
    } else {
        Err(format!(
            "there is no token '{id}'; see what there is with: forebay flow token --list"
        ))
    }
}

/// Returns the token with this text. None: the token isn't valid now, or its file can't be read.
pub fn check(state: &Path, text: &str) -> Option<Token> {
    let id = id_of(text)?;
    let token: Token = disk::load(&path(state, id)).ok()??;
    let is_same = same(hash(text).as_bytes(), token.hash.as_bytes());
    (is_same && token.id == id && now() < token.expires).then_some(token)
}

/// Returns the id in a token's text.
fn id_of(text: &str) -> Option<&str> {
    if text.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let is_id = id.len() == 2 * ID && id.bytes().all(|b| b.is_ascii_hexdigit());
    (is_id && !secret.is_empty()).then_some(id)
}

fn path(state: &Path, id: &str) -> PathBuf {
    state.join("tokens").join(format!("{id}.json"))
}

fn hash(text: &str) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref())
}

/// Whether `a` and `b` are equal. The time of the comparison depends only on the lengths.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differs = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differs) == 0
}

/// Returns random bytes from the system.
///
/// # Errors
/// The system returns none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| "the system gives no random bytes".to_owned())?;
    Ok(bytes)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fuzz::Random;

    fn state(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fbf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_token_until_it_expires_or_is_revoked() {
        let state = state("token");
        let (token, text) = make(&state, "ann", &[Scope::Read], 100).unwrap();
        assert_eq!(check(&state, &text), Some(token.clone()));
        let kept = std::fs::read_to_string(path(&state, &token.id)).unwrap();
        assert!(!kept.contains(text.rsplit_once('_').unwrap().1));
        let (_, old) = make(&state, "ann", &[Scope::Read], 0).unwrap();
        assert_eq!(check(&state, &old), None, "expired");
        for n in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[n] ^= 1;
            let other = String::from_utf8(other).unwrap();
            assert_eq!(check(&state, &other), None, "{n}");
            assert_eq!(check(&state, &text[..n]), None, "{n}");
        }
        assert_eq!(list(&state).unwrap().len(), 2);
        revoke(&state, &token.id).unwrap();
        assert_eq!(check(&state, &text), None, "revoked");
        assert!(revoke(&state, "../../etc/passwd").is_err());
        std::fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn no_garbage_is_a_token() {
        let state = state("garbage");
        let mut random = Random::new(3);
        for _ in 0..5000 {
            let text = String::from_utf8_lossy(&random.bytes(60)).into_owned();
            assert_eq!(check(&state, &text), None);
            assert_eq!(check(&state, &format!("fbf_{text}")), None);
        }
        for bad in [
            "",
            "fbf_",
            "fbf__",
            "fbf_../../x_y",
            "fbf_0123456789abcdef_",
        ] {
            assert_eq!(check(&state, bad), None);
        }
        assert_eq!(
            Scope::parse_list("write,read,read"),
            Ok(vec![Scope::Read, Scope::Write])
        );
        assert!(Scope::parse_list("all").is_err());
        std::fs::remove_dir_all(&state).unwrap();
    }
}
