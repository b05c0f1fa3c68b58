//! A pool's configuration, as written in its `pool.json`.

use crate::home::{name_of, sync_path};
use crate::origin::OriginConfig;
use crate::private::{self, Above};
use crate::{Lifetime, PoolError};
use forebay_controls::{Controls, Persistence, Rules, Temporality};
use forebay_media::{Medium, MediumKind, MediumSpec};
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use forebay_store::MAX_SHARDS;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Version of the formats: one number for records, control region and media together.
pub const VERSION: u32 = 13;
/// Maximum number of media of a pool.
const MAX_MEDIA: usize = 16;
/// Maximum length of a pool's name. Bytes.
const MAX_NAME: usize = 64;
/// How long a keeper waits for the lock of a medium: a killed predecessor holds this lock until the
/// kernel has removed its process.
const MEDIUM_TIMEOUT: Duration = Duration::from_secs(2);
const MEDIUM_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Options for creating a pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    pub name: String,
    /// Prefix under which programs see the pool: `/fb`.
    pub mount: String,
    /// The media, fastest first.
    pub media: Vec<MediumSpec>,
    /// Maximum number of bytes that the keeper keeps reserved ahead of use in each medium; None:
    /// [`DEFAULT_RESERVE`].
    pub reserve: Option<u64>,
    /// Controls of new objects, by path.
    pub rules: Rules,
    /// The slow store behind the pool.
    pub origin: Option<OriginConfig>,
}

/// Default of [`CreateOptions::reserve`]. Bytes.
pub const DEFAULT_RESERVE: u64 = 256 << 20;

fn default_reserve() -> u64 {
    DEFAULT_RESERVE
}

/// A pool's configuration. Fixed for the pool's lifetime.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolConfig {
    pub version: u32,
    pub name: String,
    pub uuid: String,
    pub mount: String,
    pub media: Vec<MediumSpec>,
    pub shards: usize,
    /// Address space for the records of one shard, in bytes.
    pub record_bytes: usize,
    /// Seconds since 1970.
    pub created: i64,
    /// Maximum number of bytes that the keeper keeps reserved ahead of use in each medium.
    #[serde(default = "default_reserve")]
    pub reserve: u64,
    /// Controls that apply where neither a rule nor a declaration sets them.
    #[serde(default)]
    pub controls: Controls,
    /// The rules: controls of new objects, by their paths.
    #[serde(default, skip_serializing_if = "Rules::is_empty")]
    pub rules: Rules,
    /// The node to which this configuration belongs; None in a pool of one node.
    #[serde(default)]
    pub member: Option<Member>,
    /// Limits after which the pool removes itself.
    #[serde(default)]
    pub lifetime: Lifetime,
    /// The slow store behind the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginConfig>,
}

/// One node of a pool of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node's number.
    pub node: u32,
    /// Number of nodes when the pool was created.
    pub nodes: u32,
}

impl PoolConfig {
    /// Whether the pool has a quota.
    pub fn has_quota(&self) -> bool {
        let origin = self.origin.as_ref();
        origin.is_some_and(|origin| origin.quota.is_some())
    }

    /// Whether any medium is `files`.
    pub fn has_files(&self) -> bool {
        has_files(&self.media)
    }

    pub(crate) fn new(o: &CreateOptions) -> Result<PoolConfig, PoolError> {
        check_name(&o.name)?;
        check_mount(&o.mount)?;
        if o.media.is_empty() || o.media.len() > MAX_MEDIA {
            return Err(PoolError::Invalid(format!(
                "a pool has 1 to {MAX_MEDIA} media, not {}",
                o.media.len()
            )));
        }
        let mut random = [0u8; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| PoolError::io("no random numbers from", Path::new("getrandom"), e))?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        // Enough shards that two processes that change the same directory rarely need the same
        // shard.
        let shards = (4 * cores).next_power_of_two().clamp(16, MAX_SHARDS);
        let capacity: u64 = o.media.iter().map(|m| m.capacity).sum();
        // Address space only: memory is allocated as records are written.
        let record_bytes = (capacity / 8 / shards as u64).clamp(32 << 20, 8 << 30) as usize;
        Ok(PoolConfig {
            version: VERSION,
            name: o.name.clone(),
            uuid: random.iter().map(|b| format!("{b:02x}")).collect(),
            mount: o.mount.trim_end_matches('/').to_owned(),
            media: o.media.clone(),
            shards,
            record_bytes: record_bytes & !4095,
            created: forebay_store::now() / 1_000_000_000,
            reserve: o.reserve.unwrap_or(DEFAULT_RESERVE),
            controls: Controls::default(),
            rules: o.rules.clone(),
            member: None,
            lifetime: Lifetime::default(),
            origin: o.origin.clone(),
        })
    }

    /// The configuration of node `member` of a pool with this identity (32 hexadecimal digits).
    ///
    /// # Errors
    /// [`PoolError::Invalid`] for a name, mount prefix, number of media or identity that can't be
    /// used; [`PoolError::Io`] if there are no random numbers.
    pub fn of_node(o: &CreateOptions, uuid: &str, member: Member) -> Result<PoolConfig, PoolError> {
        let mut config = PoolConfig::new(o)?;
        if uuid.len() != config.uuid.len() || !uuid.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(PoolError::Invalid(format!(
                "'{uuid}' is no identity of a pool"
            )));
        }
        uuid.clone_into(&mut config.uuid);
        config.member = Some(member);
        Ok(config)
    }

    /// Maximum room that the keeper keeps ready in medium `i`: the configured reserve, but at most
    /// an eighth of the medium's capacity. Bytes.
    pub fn reserve_of(&self, i: usize) -> u64 {
        self.reserve.min(self.media[i].capacity / 8)
    }

    /// The directory of medium `i`, for a pool in `dir`.
    pub fn medium_dir(&self, dir: &Path, i: usize) -> PathBuf {
        match &self.media[i].kind {
            MediumKind::Memory => dir.join(format!("medium-{i}")),
            MediumKind::Files(base) => {
                let uid = rustix::process::geteuid().as_raw();
                // Several nodes of one host may have the same directory for their media.
                let node = self
                    .member
                    .map_or(String::new(), |m| format!("n{}-", m.node));
                base.join(format!(
                    "forebay-{uid}-{}-{}-{node}{i}",
                    self.name,
                    &self.uuid[..8]
                ))
            }
        }
    }

    /// Path of the map of medium `i`.
    pub fn map_path(&self, dir: &Path, i: usize) -> PathBuf {
        dir.join(format!("map-{i}"))
    }

    /// Directory of the records.
    pub fn records_dir(&self, dir: &Path) -> PathBuf {
        dir.join("records")
    }

    /// Directory of checkpoint and journal. None if any medium is memory: a reboot loses its bytes,
    /// and records of lost bytes are useless.
    pub fn journal_dir(&self, dir: &Path) -> Option<PathBuf> {
        let memory = self.media.iter().any(|m| m.kind == MediumKind::Memory);
        (!memory).then(|| self.medium_dir(dir, 0))
    }

    /// Number of bytes of the journal after which a checkpoint is due.
    pub(crate) fn journal_bound(&self) -> u64 {
        journal_bound(self.media.iter().map(|m| m.capacity).sum())
    }

    /// Locks all `files` media of the pool in `dir`; each lock is held until its descriptor is
    /// dropped. Several pools' directories (another FOREBAY_HOME, another host) may link to the
    /// same medium. By these locks, a keeper notices that another keeper uses it.
    ///
    /// # Errors
    /// [`PoolError::Daemon`] if another keeper has locked a medium; [`PoolError::Io`].
    pub(crate) fn hold_media(&self, dir: &Path) -> Result<Vec<OwnedFd>, PoolError> {
        let mut held = Vec::new();
        for (i, spec) in self.media.iter().enumerate() {
            if spec.kind == MediumKind::Memory {
                continue;
            }
            let medium = self.medium_dir(dir, i);
            let file = medium.join("in-use");
            let failed = |e: Errno| PoolError::io("can't lock", &file, e);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let mode = Mode::RUSR | Mode::WUSR;
            let fd = rustix::fs::open(&file, flags, mode).map_err(failed)?;
            let until = Instant::now() + MEDIUM_TIMEOUT;
            loop {
                match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => break,
                    Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                        std::thread::sleep(MEDIUM_POLL_INTERVAL);
                    }
                    Err(Errno::WOULDBLOCK) => {
                        return Err(PoolError::Daemon(format!(
                            "the medium {} is in use: a keeper of the pool '{}' runs, with another \
                             FOREBAY_HOME or on another host; end that pool there first",
                            medium.display(),
                            self.name
                        )));
                    }
                    Err(e) => return Err(failed(e)),
                }
            }
            held.push(fd);
        }
        Ok(held)
    }

    pub(crate) fn open_media(&self, dir: &Path) -> Result<Vec<Medium>, PoolError> {
        let open = |(i, spec): (usize, &MediumSpec)| {
            let (at, map) = (self.medium_dir(dir, i), self.map_path(dir, i));
            if spec.kind != MediumKind::Memory {
                private::check(&at, Above::Any)?;
            }
            Medium::open(i, spec.kind.clone(), &at, &map, spec.capacity).map_err(|e| match e {
                // This process isn't allowed to read the files, so nothing is known about the
                // medium.
                e if crate::error::cant_look(e) => {
                    PoolError::io("can't open the medium in", &at, e)
                }
                e => PoolError::Damaged {
                    name: self.name.clone(),
                    why: format!("medium {spec}: {}", crate::error::words(e)),
                },
            })
        };
        self.media.iter().enumerate().map(open).collect()
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), PoolError> {
        let path = dir.join("pool.json");
        let text = serde_json::to_string_pretty(self).expect("a config is plain data");
        let part = dir.join("pool.json.part");
        let failed = |e| PoolError::io("can't write", &path, e);
        std::fs::write(&part, text + "\n").map_err(|e| failed(errno(&e)))?;
        sync_path(&part).map_err(failed)?;
        rustix::fs::rename(&part, &path).map_err(failed)?;
        sync_path(dir).map_err(failed)
    }

    /// Reads `pool.json` of the pool, or node, in `dir`.
    ///
    /// # Errors
    /// [`PoolError::Foreign`] if others own or can change `dir`; [`PoolError::Damaged`] if the file
    /// is missing, malformed or of another version; [`PoolError::Io`] if it can't be read.
    pub fn read(dir: &Path) -> Result<PoolConfig, PoolError> {
        PoolConfig::read_in(dir, Above::Strict)
    }

    /// As [`PoolConfig::read`], for the directory of a medium: directories above it may belong to
    /// others.
    ///
    /// # Errors
    /// As for [`PoolConfig::read`].
    pub(crate) fn read_of_medium(dir: &Path) -> Result<PoolConfig, PoolError> {
        PoolConfig::read_in(dir, Above::Any)
    }

    fn read_in(dir: &Path, above: Above) -> Result<PoolConfig, PoolError> {
        private::check(dir, above)?;
        let name = name_of(dir);
        let damaged = |why: String| PoolError::Damaged {
            name: name.clone(),
            why,
        };
        let path = dir.join("pool.json");
        let text =
            untrusted::read_text(&path, Links::Refuse, MAX_SETTINGS).map_err(|e| {
                match errno(&e) {
                    e if crate::error::cant_look(e) => PoolError::io("can't read", &path, e),
                    _ => damaged(format!("pool.json: {e}")),
                }
            })?;
        let config: PoolConfig =
            serde_json::from_str(&text).map_err(|e| damaged(format!("pool.json: {e}")))?;
        if config.version != VERSION {
            return Err(damaged(format!(
                "made by another version of Forebay ({})",
                config.version
            )));
        }
        let sane = (1..=MAX_SHARDS).contains(&config.shards)
            && (1..=MAX_MEDIA).contains(&config.media.len())
            && config.uuid.len() == 32
            && config.uuid.bytes().all(|b| b.is_ascii_hexdigit())
            && config.record_bytes >= 1 << 20
            && check_name(&config.name).is_ok()
            && check_mount(&config.mount).is_ok()
            && config.member.is_none_or(|m| m.node < m.nodes);
        if !sane {
            return Err(damaged("pool.json has impossible values".into()));
        }
        Ok(config)
    }
}

fn journal_bound(capacity: u64) -> u64 {
    (capacity / 16).clamp(4 << 20, 64 << 20)
}

/// Number of bytes that a pool of `files` media with this capacity needs in addition to the media
/// when it is created: two journals and two checkpoints.
pub(crate) fn beside_files(capacity: u64) -> u64 {
    2 * (journal_bound(capacity) + forebay_store::RING as u64) + capacity / 512 + (4 << 20)
}

fn has_files(media: &[MediumSpec]) -> bool {
    media.iter().any(|m| m.kind != MediumKind::Memory)
}

/// Why a pool with these media, with or without an origin, can't support the controls; None if it
/// can. An empty list stands for media that are chosen later and include memory.
pub fn impossible(controls: &Controls, media: &[MediumSpec], has_origin: bool) -> Option<String> {
    let is_memory = |m: &MediumSpec| m.kind == MediumKind::Memory;
    let has_files = has_files(media);
    let only_files = has_files && !media.iter().any(is_memory);
    let moves = media.first().is_some_and(is_memory) && has_files;
    if controls.persistence == Persistence::Durable && !only_files {
        return Some(
            "persistence = \"durable\" is impossible on this pool: not all of its media are files; \
             make one with: forebay up --media files:DIR:SIZE"
                .into(),
        );
    }
    if controls.persistence == Persistence::Node && !has_files {
        return Some(
            "persistence = \"node\" is impossible on this pool: none of its media is files; \
             make one with: forebay up --media memory:SIZE \
             --media files:DIR:SIZE"
                .into(),
        );
    }
    if controls.persistence == Persistence::Origin && !has_origin {
        return Some(
            "persistence = \"origin\" is impossible on this pool: it has no origin; \
             make one with: forebay up --origin DIR"
                .into(),
        );
    }
    (controls.temporality == Temporality::Bursty && !moves).then(|| {
        "temporality = \"bursty\" is impossible on this pool: it needs memory with files behind it, \
         to which written data \
         is moved; make one with: forebay up --media memory:SIZE --media files:DIR:SIZE"
            .into()
    })
}

/// Checks a pool's name. The name becomes part of paths: 1 to 64 letters, digits, `-`, `_` and `.`,
/// not beginning with `.`.
///
/// # Errors
/// [`PoolError::Invalid`] for any other name.
pub fn check_name(name: &str) -> Result<(), PoolError> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if !name.is_empty() && name.len() <= MAX_NAME && !name.starts_with('.') && name.bytes().all(ok)
    {
        return Ok(());
    }
    Err(PoolError::Invalid(format!(
        "'{name}' can't be a pool's name: use up to {MAX_NAME} letters, digits, '-', '_' and '.'"
    )))
}

fn check_mount(mount: &str) -> Result<(), PoolError> {
    let trimmed = mount.trim_end_matches('/');
    let parts = || trimmed.split('/').skip(1);
    if trimmed.starts_with('/')
        && trimmed.len() < 256
        && parts().all(|p| !p.is_empty() && p != "." && p != "..")
    {
        return Ok(());
    }
    Err(PoolError::Invalid(format!(
        "'{mount}' can't be a mount prefix: write an absolute path such as /fb"
    )))
}

fn errno(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// Restarts the lifetime of the pool, or node, in `dir`, if that lifetime is limited. The keeper
/// must have ended.
///
/// # Errors
/// As for [`PoolConfig::read`]; [`PoolError::Io`] if pool.json can't be written.
pub fn begin_lifetime(dir: &Path) -> Result<(), PoolError> {
    let mut config = PoolConfig::read(dir)?;
    if !config.lifetime.any() {
        return Ok(());
    }
    config.lifetime = config.lifetime.begun();
    config.write(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_host_have_media_of_their_own() {
        let media = vec![MediumSpec {
            kind: MediumKind::Files("/ssd".into()),
            capacity: 1 << 30,
        }];
        let mut config = PoolConfig::new(&CreateOptions {
            name: "p".into(),
            mount: "/fb".into(),
            media,
            reserve: None,
            rules: Rules::default(),
            origin: None,
        })
        .unwrap();
        let places = [None, Some(0), Some(1), Some(10)].map(|node| {
            config.member = node.map(|node| Member { node, nodes: 11 });
            let text = serde_json::to_string(&config).unwrap();
            let read: PoolConfig = serde_json::from_str(&text).unwrap();
            assert_eq!(read.member, config.member);
            read.medium_dir(Path::new("/x"), 0)
        });
        for (i, place) in places.iter().enumerate() {
            assert!(!places[..i].contains(place), "{places:?}");
        }
        // Versions without pools of several nodes wrote no `member`.
        let mut text = serde_json::to_value(&config).unwrap();
        text.as_object_mut().unwrap().remove("member");
        let read: PoolConfig = serde_json::from_value(text).unwrap();
        assert_eq!(read.member, None);
    }

    #[test]
    fn only_controls_that_the_media_can_keep_are_possible() {
        let possible = |text: &str, media: &[&str]| {
            let media: Vec<MediumSpec> = media.iter().map(|m| m.parse().unwrap()).collect();
            let declared: forebay_controls::Declared = text.parse().unwrap();
            let has_origin = media.iter().any(|m| m.kind == MediumKind::Memory);
            impossible(&declared.resolve(), &media, has_origin).is_none()
        };
        let (memory, files) = ("memory:1G", "files:/ssd:1G");
        // The five lists: no media; memory; files; memory, then files; files, then memory.
        let all: [&[&str]; 5] = [&[], &[memory], &[files], &[memory, files], &[files, memory]];
        for (text, on) in [
            ("persistence=pool", [true; 5]),
            ("persistence=process", [true; 5]),
            ("persistence=node", [false, false, true, true, true]),
            ("persistence=durable", [false, false, true, false, false]),
            ("temporality=bursty", [false, false, false, true, false]),
            // `possible` tests the lists with memory with an origin, and the others without one.
            ("persistence=origin", [false, true, false, true, true]),
        ] {
            assert_eq!(all.map(|media| possible(text, media)), on, "{text}");
        }
    }

    #[test]
    fn names_and_mounts_are_checked() {
        for good in ["default", "a.b-c_1"] {
            assert!(check_name(good).is_ok());
        }
        for bad in ["", ".", "..", ".x", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for good in ["/fb", "/fb/", "/a/b"] {
            assert!(check_mount(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "fb", "/a/../b", "/a//b", "/./a"] {
            assert!(check_mount(bad).is_err(), "{bad}");
        }
    }
}
