//! Attributes of files as user metadata of objects, with the keys of s3fs: `x-amz-meta-mode`,
//! `-uid`, `-gid` (decimal numbers) and `-mtime` (seconds since 1970, with a fraction). rclone uses
//! `-mtime`, too. rclone writes modes in octal; this module also reads octal modes.

use crate::bucket::client::{header, length};
use crate::bucket::sign::sha256;
use crate::bucket::time;
use crate::meta::Meta;
use crate::store::UserAttributes;
use std::sync::OnceLock;
use ureq::http::HeaderMap;

/// The value of [`Meta::dev`] for objects in a bucket.
pub const DEVICE: u64 = u64::from_be_bytes(*b"s3bucket");

/// Returns a number that identifies an object's version, for [`Meta::ino`]. Never 0.
pub fn version(etag: &str) -> u64 {
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    let sum = sha256(etag.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&sum[..8]);
    u64::from_le_bytes(bytes).max(1)
}

/// The reply to a HEAD of an object.
#[derive(Clone, Debug)]
pub struct Head {
    pub meta: Meta,
    /// Identifies the object's version. Empty for a directory without a marker.
    pub etag: String,
    /// The `user.*` attributes.
    pub user: UserAttributes,
    pub content_type: Option<String>,
}

/// Prefix of the headers that contain user metadata.
const USER: &str = "x-amz-meta-";
/// Keys of user metadata that aren't `user.*` attributes: those of s3fs and of other tools.
const NOT_USER: [&str; 8] = [
    "mode", "uid", "gid", "mtime", "atime", "ctime", "xattr", "rdev",
];
/// Maximum size of an object's `user.*` attributes. Bytes. Servers accept 2 KiB of user metadata.
const MAX_USER_METADATA_BYTES: usize = 1900;

/// Whether an attribute can be stored as user metadata. Names of headers have no capitals, and
/// their values only printable characters.
fn is_user(name: &[u8], value: &[u8]) -> bool {
    let Some(name) = name.strip_prefix(b"user.") else {
        return false;
    };
    let fits = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(b);
    let is_ours = NOT_USER.iter().any(|ours| ours.as_bytes() == name);
    let is_trimmed = value.trim_ascii() == value && !value.is_empty();
    let is_text = value.iter().all(|b| (b' '..=b'~').contains(b));
    !name.is_empty() && name.iter().all(fits) && !is_ours && is_trimmed && is_text
}

/// Returns those attributes that can be user metadata of an object, sorted by name, up to the
/// maximum size.
pub fn kept(mut all: UserAttributes) -> UserAttributes {
    all.retain(|(name, value)| is_user(name, value));
    all.sort();
    let mut room = MAX_USER_METADATA_BYTES;
    all.retain(|(name, value)| {
        let size = name.len() + value.len();
        let fits = size <= room;
        room -= if fits { size } else { 0 };
        fits
    });
    all
}

/// Returns the headers for attributes that [`kept`] has returned.
pub fn user_headers(all: &UserAttributes) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    all.iter()
        .map(|(name, value)| (format!("{USER}{}", text(&name[5..])), text(value)))
        .collect()
}

/// Returns the headers for an object with this metadata.
pub fn headers(meta: &Meta) -> Vec<(String, String)> {
    let all = [
        ("mode", meta.mode.to_string()),
        ("uid", meta.uid.to_string()),
        ("gid", meta.gid.to_string()),
        ("mtime", time::to_seconds(meta.mtime)),
    ];
    let named = all
        .into_iter()
        .map(|(name, value)| (format!("x-amz-meta-{name}"), value));
    named.collect()
}

/// Parses a mode: decimal as s3fs writes it, or octal as rclone does.
fn mode(text: &str) -> Option<u32> {
    let is_mode = |mode: &u32| {
        let kinds = [
            libc::S_IFREG,
            libc::S_IFDIR,
            libc::S_IFLNK,
            libc::S_IFIFO,
            libc::S_IFSOCK,
            libc::S_IFCHR,
            libc::S_IFBLK,
        ];
        *mode <= 0o177_777 && kinds.contains(&(mode & libc::S_IFMT))
    };
    let octal = || u32::from_str_radix(text, 8).ok().filter(is_mode);
    if text.starts_with('0') {
        octal()
    } else {
        text.parse().ok().filter(is_mode).or_else(octal)
    }
}

/// Returns the user, group and time for objects without attributes: this process's user and group,
/// and the time of the first call.
fn defaults() -> (u32, u32, i64) {
    static FIRST: OnceLock<i64> = OnceLock::new();
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |d| d.as_nanos() as i64)
    };
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    (user, group, *FIRST.get_or_init(now))
}

/// Returns the metadata of a directory that has no attributes.
pub fn directory() -> Meta {
    let (uid, gid, now) = defaults();
    Meta {
        dev: DEVICE,
        ino: 0,
        mode: libc::S_IFDIR | 0o755,
        nlink: 1,
        uid,
        gid,
        size: 0,
        atime: now.into(),
        mtime: now.into(),
        ctime: now.into(),
    }
}

/// Returns the attributes of a directory without a marker, in the form of a reply to HEAD.
pub fn without_marker() -> Head {
    Head {
        meta: directory(),
        etag: String::new(),
        user: UserAttributes::new(),
        content_type: None,
    }
}

/// Parses the headers of a reply to HEAD. None: the object's size or version is missing.
pub fn head(headers: &HeaderMap, is_dir: bool) -> Option<Head> {
    let of = |name: &str| header(headers, &format!("x-amz-meta-{name}"));
    let number = |name: &str| of(name).and_then(|text| text.parse().ok());
    let base = directory();
    let modified = header(headers, "last-modified").and_then(time::from_header);
    let modified = modified.unwrap_or(base.mtime);
    let mtime = of("mtime").and_then(time::from_seconds).unwrap_or(modified);
    let mut mode = of("mode").and_then(mode).unwrap_or(libc::S_IFREG | 0o644);
    if is_dir {
        let permissions = of("mode").map_or(0o755, |_| mode & 0o7777);
        mode = libc::S_IFDIR | permissions;
    } else if mode & libc::S_IFMT == libc::S_IFDIR {
        mode = libc::S_IFREG | mode & 0o777;
    }
    let etag = header(headers, "etag")?;
    let user = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(USER)?;
        Some((
            format!("user.{name}").into_bytes(),
            value.as_bytes().to_vec(),
        ))
    });
    let user = user.collect();
    let meta = Meta {
        ino: if is_dir { 0 } else { version(etag) },
        mode,
        uid: number("uid").unwrap_or(base.uid),
        gid: number("gid").unwrap_or(base.gid),
        size: length(headers)?,
        atime: mtime,
        mtime,
        ctime: modified,
        ..base
    };
    Some(Head {
        meta,
        etag: etag.to_owned(),
        user: kept(user),
        content_type: header(headers, "content-type").map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::http::{HeaderName, HeaderValue};

    fn map(all: &[(String, String)]) -> HeaderMap {
        let pair = |(n, v): &(String, String)| {
            let name = HeaderName::from_bytes(n.as_bytes()).unwrap();
            (name, HeaderValue::from_str(v).unwrap())
        };
        all.iter().map(pair).collect()
    }

    #[test]
    fn attributes_come_back() {
        let meta = Meta {
            mode: libc::S_IFREG | 0o4751,
            uid: 12,
            gid: 34,
            size: 5,
            mtime: 1_600_000_000_123_456_789,
            ..directory()
        };
        let mut all = headers(&meta);
        all.push(("content-length".into(), "5".into()));
        all.push(("etag".into(), "\"e\"".into()));
        all.push((
            "last-modified".into(),
            "Fri, 24 May 2013 00:00:00 GMT".into(),
        ));
        let got = head(&map(&all), false).unwrap().meta;
        assert_eq!((got.mode, got.uid, got.gid), (meta.mode, 12, 34));
        assert_eq!((got.size, got.mtime), (5, meta.mtime));
        let got = head(&map(&all[4..]), false).unwrap().meta;
        assert_eq!((got.mode, got.mtime), (libc::S_IFREG | 0o644, got.ctime));
        assert!(head(&map(&[]), false).is_none());
    }

    #[test]
    fn attributes_that_headers_can_have() {
        let all = |list: &[(&str, &str)]| -> UserAttributes {
            let pair = |(n, v): &(&str, &str)| (n.as_bytes().to_vec(), v.as_bytes().to_vec());
            list.iter().map(pair).collect()
        };
        let good = all(&[("user.k", "v w"), ("user.project-1", "mcse")]);
        let bad = all(&[
            ("user.K", "v"),
            ("user.mode", "1"),
            ("user.", "v"),
            ("user.a", " v"),
            ("user.a", ""),
            ("user.a", "ä"),
            ("trusted.a", "v"),
        ]);
        let both = [bad.clone(), good.clone()].concat();
        assert_eq!(kept(both), good);
        let mut headers = user_headers(&good);
        assert_eq!(headers[0], ("x-amz-meta-k".into(), "v w".into()));
        headers.push(("content-length".into(), "5".into()));
        headers.push(("etag".into(), "\"e\"".into()));
        assert_eq!(head(&map(&headers), false).unwrap().user, good);
        let long = "x".repeat(MAX_USER_METADATA_BYTES);
        assert_eq!(kept(all(&[("user.a", &long), ("user.b", "v")])).len(), 1);
    }

    #[test]
    fn modes_of_other_tools() {
        assert_eq!(mode("33188"), Some(0o100_644));
        assert_eq!(mode("41471"), Some(0o120_777));
        assert_eq!(mode("16877"), Some(0o40_755));
        for octal in ["100644", "0100644"] {
            assert_eq!(mode(octal), Some(0o100_644));
        }
        assert_eq!(mode("40755"), Some(0o40_755));
        for bad in ["", "x", "-1", "99999999999", "7"] {
            assert_eq!(mode(bad), None, "{bad}");
        }
    }
}
