//! The tiers that a site or a user configures, and the rules for campaigns on them.
//!
//! Tiers are configured in one TOML file: `$FOREBAY_CAMPAIGNS`, else
//! `~/.config/forebay/campaigns.toml`, else `/etc/forebay/campaigns.toml`. If none of these exists,
//! the tiers are directories of the user ([`OwnPlaces`]).
//!
//! ```toml
//! warn = ["7d", "1d", "1h"]
//! mail = ["mail", "-s", "{subject}", "{user}"]
//! archive = "tape"
//!
//! [tier.scratch]
//! path = "/scratch/{user}/campaigns"
//! longest = "30d"
//! at_end = "archive"
//!
//! [tier.tape]
//! path = "s3://archive/{user}"
//! ```

use crate::Result;
use crate::area::POOL;
use crate::record::AtEnd;
use crate::registry::{EtcdPlace, Everyone, IN_HOME, RegistryPlace};
use forebay_backing::Address;
use forebay_media::{count, format_size, parse_size, parse_time};
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Default duration of a campaign. Seconds: 30 days.
const USUAL: u64 = 30 * 86_400;
/// Default grace period of data after the end. Seconds: 7 days.
const GRACE: u64 = 7 * 86_400;
/// Default times before a campaign's end at which the owner is warned. Seconds.
const WARN: [u64; 3] = [7 * 86_400, 86_400, 3600];

/// Names of a user's own tiers: for temporary data, for permanent data, in the home directory.
const SCRATCH: &str = "scratch";
const WORK: &str = "work";
const HOME: &str = "home";

/// The directories for a user's campaigns if no file configures tiers: below `$SCRATCH`, `$WORK`
/// and the home's data directory, as far as these exist. A tier `scratch` always exists.
struct OwnPlaces {
    all: Vec<(&'static str, PathBuf)>,
    has_scratch: bool,
}

impl OwnPlaces {
    /// Finds the directories.
    ///
    /// # Errors
    /// The user has no home directory, and none of the other directories exists.
    fn find(variable: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> Result<OwnPlaces> {
        let of_site = |name| {
            let path = PathBuf::from(variable(name)?);
            (path.is_absolute() && path.is_dir()).then(|| path.join("forebay-campaigns"))
        };
        let data = variable("XDG_DATA_HOME").map(PathBuf::from);
        let data = data.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/share")));
        let home = data
            .filter(|data| data.is_absolute())
            .map(|data| data.join("forebay/campaign-data"));
        let (scratch, work) = (of_site("SCRATCH"), of_site("WORK"));
        let has_scratch = scratch.is_some();
        let first = scratch.or_else(|| work.clone()).or_else(|| home.clone());
        let all: Vec<(&str, PathBuf)> = [(SCRATCH, first), (WORK, work), (HOME, home)]
            .into_iter()
            .filter_map(|(name, path)| Some((name, path?)))
            .collect();
        if all.is_empty() {
            return Err(
                "where can campaigns lie? Set SCRATCH, WORK or HOME, or name tiers in a file \
                 (docs/howto/campaigns.md)"
                    .into(),
            );
        }
        Ok(OwnPlaces { all, has_scratch })
    }
}

/// Whether a file exists.
///
/// # Errors
/// The error of checking, as a message.
fn is_there(file: &Path) -> Result<bool> {
    file.try_exists()
        .map_err(|e| format!("can't look at {}: {e}", file.display()))
}

/// The content of the file of tiers, or the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// The file that was read; without one, the file in which the user can configure tiers.
    pub file: PathBuf,
    /// Whether no file exists, so that the tiers are directories of the user.
    pub are_own: bool,
    /// Whether the tier `scratch` is a directory for other data, since `$SCRATCH` names none.
    lacks_scratch: bool,
    /// The location of the user's campaigns, and that of all users' campaigns.
    pub registry: RegistryPlace,
    pub everyone: Everyone,
    /// Times before the end at which the owner is warned. Seconds, longest first.
    pub warn: Vec<u64>,
    /// The program that sends a message, with its arguments. `{user}` and `{subject}` are replaced
    /// in them. The program reads the text from its standard input.
    pub mail: Vec<String>,
    /// The tier for archives.
    pub archive: Option<String>,
    tiers: BTreeMap<String, Tier>,
}

/// A directory, bucket or pool for campaigns, with the rules for the campaigns in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// The directory, prefix of a bucket, or `pool:NAME/PATH` that contains the campaigns. `{user}`
    /// stands for the owner's name.
    path: String,
    /// Default and maximum duration of a campaign on this tier. Seconds.
    pub usual: u64,
    pub longest: Option<u64>,
    /// Maximum quotas of a campaign: bytes, and files.
    pub largest: Option<u64>,
    pub most_files: Option<u64>,
    pub at_end: AtEnd,
    pub grace: u64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    registry: Option<String>,
    warn: Option<Vec<String>>,
    #[serde(default)]
    mail: Vec<String>,
    archive: Option<String>,
    etcd: Option<EtcdText>,
    #[serde(default)]
    tier: BTreeMap<String, TierText>,
}

/// Settings for reaching the registry's etcd. In these settings, `{user}` stands for the user's
/// name, and `~/` for the home directory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EtcdText {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    user: Option<String>,
    #[serde(alias = "password-file")]
    password_file: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TierText {
    path: Option<String>,
    pool: Option<String>,
    usual: Option<String>,
    longest: Option<String>,
    largest: Option<String>,
    most_files: Option<u64>,
    at_end: Option<String>,
    grace: Option<String>,
}

impl Tiers {
    /// Reads the file of tiers that has precedence.
    ///
    /// # Errors
    /// The file can't be read or is invalid. The message has the position.
    pub fn read(user: &str) -> Result<Tiers> {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        let (file, links) = match variable("FOREBAY_CAMPAIGNS") {
            Some(file) => (PathBuf::from(file), Links::Named),
            None => {
                let mine = variable("XDG_CONFIG_HOME").map(PathBuf::from);
                let mine = mine.unwrap_or_else(|| home.join(".config"));
                let mine = mine.join("forebay/campaigns.toml");
                let of_site = PathBuf::from("/etc/forebay/campaigns.toml");
                let is_of_site = !is_there(&mine)? && is_there(&of_site)?;
                let file = if is_of_site { of_site } else { mine };
                (file, Links::Follow)
            }
        };
        let registry = match variable("XDG_DATA_HOME") {
            Some(data) => PathBuf::from(data).join("forebay/campaigns"),
            None => home.join(IN_HOME),
        };
        match untrusted::read_text(&file, links, MAX_SETTINGS) {
            Ok(text) => Tiers::parse(&text, &file, &registry, (user, &home)),
            Err(e)
                if e.kind() == std::io::ErrorKind::NotFound
                    && variable("FOREBAY_CAMPAIGNS").is_none() =>
            {
                let places = OwnPlaces::find(&variable)?;
                Tiers::own(&places, &file, &registry, (user, &home))
            }
            Err(e) => Err(format!(
                "can't read {}, which names the tiers of campaigns: {e} (docs/howto/campaigns.md shows \
                 one)",
                file.display()
            )),
        }
    }

    /// Returns the tiers of a user for whom no file configures any.
    ///
    /// # Errors
    /// A directory's name can't be used in a file of tiers.
    fn own(
        places: &OwnPlaces,
        file: &Path,
        registry: &Path,
        of_user: (&str, &Path),
    ) -> Result<Tiers> {
        let mut read = File::default();
        for (name, path) in &places.all {
            let path = path.to_str();
            let path = path.ok_or_else(|| format!("the path of the tier '{name}' is no UTF-8"))?;
            let tier = TierText {
                path: Some(path.to_owned()),
                ..TierText::default()
            };
            read.tier.insert((*name).to_owned(), tier);
        }
        let tiers = Tiers::of(read, file, registry, of_user)?;
        Ok(Tiers {
            are_own: true,
            lacks_scratch: !places.has_scratch,
            ..tiers
        })
    }

    /// Whether a tier is called `scratch` but isn't a directory for temporary data.
    pub fn is_no_scratch(&self, tier: &str) -> bool {
        self.lacks_scratch && tier == SCRATCH
    }

    /// Returns the source of the tiers, for messages.
    fn source(&self) -> String {
        if self.are_own {
            format!(
                "your own directories ({} can name tiers)",
                self.file.display()
            )
        } else {
            self.file.display().to_string()
        }
    }

    /// Parses the text of a file of tiers, for a user with this home directory. `registry`: the
    /// default location of campaigns' records.
    ///
    /// # Errors
    /// A message that names the file, the tier and the invalid value.
    pub fn parse(
        text: &str,
        file: &Path,
        registry: &Path,
        (user, home): (&str, &Path),
    ) -> Result<Tiers> {
        let read = toml::from_str(text).map_err(|e| format!("{}: {e}", file.display()))?;
        Tiers::of(read, file, registry, (user, home))
    }

    /// Checks the content of a file of tiers, and returns it.
    fn of(read: File, file: &Path, registry: &Path, (user, home): (&str, &Path)) -> Result<Tiers> {
        let shown = file.display();
        let in_file = |e: String| format!("{shown}: {e}");
        let mut tiers = BTreeMap::new();
        for (name, t) in &read.tier {
            let of_tier = |e: String| format!("{shown}: tier '{name}': {e}");
            let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_good) {
                return Err(of_tier(
                    "a name begins with a letter, and has letters, digits, -, _ and .".into(),
                ));
            }
            let time = |text: &Option<String>, otherwise: u64| match text {
                Some(text) => parse_time(text).map_err(of_tier),
                None => Ok(otherwise),
            };
            let longest = match &t.longest {
                Some(text) => Some(parse_time(text).map_err(of_tier)?),
                None => None,
            };
            let usual = time(&t.usual, longest.unwrap_or(USUAL).min(USUAL))?;
            if longest.is_some_and(|longest| usual > longest) {
                return Err(of_tier("'usual' is longer than 'longest'".into()));
            }
            let path = match (&t.pool, &t.path) {
                (None, Some(path)) => path.clone(),
                (None, None) => return Err(of_tier("it has neither a path nor a pool".into())),
                (Some(pool), path) => {
                    let path = path.as_deref().unwrap_or("/campaigns/{user}");
                    if pool.is_empty() || pool.contains('/') || !path.starts_with('/') {
                        return Err(of_tier(
                            "a pool is a name, and the path in it begins with a slash".into(),
                        ));
                    }
                    format!("{POOL}{pool}{path}")
                }
            };
            let is_place = Address::parse(path.as_bytes()).is_some()
                || path.starts_with('/')
                || path.starts_with(POOL) && t.pool.is_some();
            if !is_place {
                return Err(of_tier(format!(
                    "'{path}' is neither an absolute path nor s3://BUCKET/PREFIX"
                )));
            }
            let tier = Tier {
                path: path.trim_end_matches('/').to_owned(),
                usual,
                longest,
                largest: match &t.largest {
                    Some(text) => Some(parse_size(text).map_err(of_tier)?),
                    None => None,
                },
                most_files: t.most_files,
                at_end: match &t.at_end {
                    Some(text) => AtEnd::parse(text).map_err(of_tier)?,
                    None => AtEnd::Delete,
                },
                grace: time(&t.grace, GRACE)?,
            };
            tiers.insert(name.clone(), tier);
        }
        let mut warn = WARN.to_vec();
        if let Some(texts) = &read.warn {
            let times: Result<Vec<u64>> = texts.iter().map(|t| parse_time(t)).collect();
            warn = times.map_err(in_file)?;
            warn.sort_by(|a, b| b.cmp(a));
        }
        let (registry, everyone) =
            registry_place(read.registry, read.etcd, registry, (user, home)).map_err(in_file)?;
        let all = Tiers {
            file: file.to_owned(),
            are_own: false,
            lacks_scratch: false,
            registry,
            everyone,
            warn,
            mail: read.mail,
            archive: read.archive,
            tiers,
        };
        let ends = all.tiers.values().map(|t| &t.at_end);
        for end in ends.chain([&AtEnd::Keep]) {
            all.check_end(end).map_err(in_file)?;
        }
        if let Some(archive) = &all.archive {
            all.get(archive)?;
        }
        Ok(all)
    }

    /// Returns the tier with this name.
    ///
    /// # Errors
    /// No tier has this name.
    pub fn get(&self, name: &str) -> Result<&Tier> {
        self.tiers.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.tiers.keys().map(String::as_str).collect();
            format!(
                "there is no tier '{name}' in {}; there are: {}",
                self.source(),
                names.join(", ")
            )
        })
    }

    /// Returns the tier of campaigns that name none: among a user's own tiers, `scratch`; otherwise
    /// the only tier that isn't for archives.
    ///
    /// # Errors
    /// Several tiers, or none, aren't for archives.
    pub fn only(&self) -> Result<&str> {
        if self.are_own {
            return Ok(SCRATCH);
        }
        let mut names = self
            .tiers
            .keys()
            .filter(|&n| self.archive.as_ref() != Some(n));
        match (names.next(), names.next()) {
            (Some(name), None) => Ok(name),
            (None, _) => Err(format!("{} names no tier", self.file.display())),
            _ => Err(format!(
                "{} names several tiers: say which one with --tier",
                self.file.display()
            )),
        }
    }

    /// Checks that the action at a campaign's end is possible.
    ///
    /// # Errors
    /// The tier doesn't exist, or no tier is for archives.
    pub fn check_end(&self, end: &AtEnd) -> Result<()> {
        match end {
            AtEnd::Archive => self.archive_tier().map(|_| ()),
            AtEnd::Move(tier) => self.get(tier).map(|_| ()),
            AtEnd::Delete | AtEnd::Keep => Ok(()),
        }
    }

    /// Returns the name of the tier for archives.
    ///
    /// # Errors
    /// No tier is for archives.
    pub fn archive_tier(&self) -> Result<&str> {
        self.archive.as_deref().ok_or_else(|| {
            format!(
                "no tier is for archives: write archive = \"TIER\" in {}",
                self.file.display()
            )
        })
    }
}

fn registry_place(
    given: Option<String>,
    etcd: Option<EtcdText>,
    usual: &Path,
    (user, home): (&str, &Path),
) -> Result<(RegistryPlace, Everyone)> {
    let Some(text) = given.as_deref().and_then(|text| text.strip_prefix("etcd:")) else {
        if etcd.is_some() {
            return Err("[etcd] is of no use: the registry is a directory".into());
        }
        let Some(path) = given else {
            return Ok((RegistryPlace::Directory(usual.to_owned()), Everyone::Homes));
        };
        let own = RegistryPlace::Directory(path.replace("{user}", user).into());
        return Ok((own, Everyone::of_directories(&path)));
    };
    let mut place = EtcdPlace::parse(text)?;
    if let Some(text) = etcd {
        let own = |text: Option<String>| text.map(|text| text.replace("{user}", user));
        let path = |text: Option<String>| -> Result<Option<PathBuf>> {
            let Some(text) = own(text) else {
                return Ok(None);
            };
            match text.strip_prefix("~/") {
                Some(rest) => Ok(Some(home.join(rest))),
                None if text.starts_with('/') => Ok(Some(text.into())),
                None => Err(format!("[etcd]: '{text}' is no absolute path")),
            }
        };
        place.authority = path(text.ca)?;
        (place.certificate, place.key) = (path(text.cert)?, path(text.key)?);
        (place.user, place.password_file) = (own(text.user), path(text.password_file)?);
    }
    let has_files = place.authority.is_some() || place.certificate.is_some();
    match () {
        () if place.certificate.is_some() != place.key.is_some() => {
            Err("[etcd]: give both, cert and key, or neither".into())
        }
        () if place.user.is_some() != place.password_file.is_some() => {
            Err("[etcd]: give both, user and password_file, or neither".into())
        }
        () if has_files && !place.has_tls => {
            Err("[etcd]: certificates are for a registry with https://".into())
        }
        () if place.user.is_some() && !place.has_tls && !place.is_local() => {
            Err("[etcd]: a password goes to another host by https:// only".into())
        }
        () => Ok((RegistryPlace::Etcd(place.clone()), Everyone::Etcd(place))),
    }
}

impl Tier {
    /// Returns the quota of a campaign for which this many bytes and files are requested. None: the
    /// tier's maximum is used.
    ///
    /// # Errors
    /// The request exceeds the tier's maximum.
    pub fn quota(
        &self,
        bytes: Option<u64>,
        files: Option<u64>,
    ) -> Result<(Option<u64>, Option<u64>)> {
        let exceeds = |wanted: Option<u64>, most: Option<u64>| match (wanted, most) {
            (Some(wanted), Some(most)) if wanted > most => Some(most),
            _ => None,
        };
        if let Some(most) = exceeds(bytes, self.largest) {
            let most = format_size(most);
            return Err(format!("a campaign on this tier has {most} at most"));
        }
        if let Some(most) = exceeds(files, self.most_files) {
            let most = count(most, "file");
            return Err(format!("a campaign on this tier has {most} at most"));
        }
        Ok((bytes.or(self.largest), files.or(self.most_files)))
    }

    /// Returns the place of a campaign: a path, or `s3://BUCKET/PREFIX`.
    pub fn place_of(&self, owner: &str, name: &str) -> String {
        format!("{}/{name}", self.path.replace("{user}", owner))
    }
}

impl AtEnd {
    /// Parses `archive`, `delete`, `keep` or `move:TIER`.
    ///
    /// # Errors
    /// The text has none of these forms.
    pub fn parse(text: &str) -> Result<AtEnd> {
        match text {
            "archive" => Ok(AtEnd::Archive),
            "delete" => Ok(AtEnd::Delete),
            "keep" => Ok(AtEnd::Keep),
            _ => match text.strip_prefix("move:") {
                Some(tier) if !tier.is_empty() => Ok(AtEnd::Move(tier.to_owned())),
                _ => Err(format!(
                    "'{text}' can't happen at the end: write archive, delete, keep or move:TIER"
                )),
            },
        }
    }
}

impl std::fmt::Display for AtEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AtEnd::Archive => f.write_str("archive"),
            AtEnd::Delete => f.write_str("delete"),
            AtEnd::Keep => f.write_str("keep"),
            AtEnd::Move(tier) => write!(f, "move:{tier}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Tiers> {
        let me = ("ann", Path::new("/home/ann"));
        Tiers::parse(text, Path::new("t.toml"), Path::new("/reg"), me)
    }

    #[test]
    fn a_registry_in_etcd() {
        let tiers = parse(
            "registry = 'etcd:https://a,b:1/site'\n[etcd]\nca = '/etc/ca.pem'\nuser = '{user}'\n\
             password-file = '~/.pw-{user}'\n",
        );
        let RegistryPlace::Etcd(place) = tiers.unwrap().registry else {
            panic!("a directory");
        };
        assert_eq!(place.user.as_deref(), Some("ann"));
        assert_eq!(place.password_file, Some("/home/ann/.pw-ann".into()));
        assert_eq!(place.authority, Some("/etc/ca.pem".into()));
        for (text, says) in [
            ("registry = 'etcd:a/p'", "neither"),
            ("registry = '/dir'\n[etcd]\nuser = 'a'", "of no use"),
            (
                "registry = 'etcd:https://a/p'\n[etcd]\nuser = 'a'",
                "password_file",
            ),
            (
                "registry = 'etcd:https://a/p'\n[etcd]\ncert = '/a'",
                "cert and key",
            ),
            (
                "registry = 'etcd:http://a/p'\n[etcd]\nca = '/a'",
                "https://",
            ),
            (
                "registry = 'etcd:http://a/p'\n[etcd]\nuser = 'a'\npassword_file = '/a'",
                "https:// only",
            ),
            (
                "registry = 'etcd:https://a/p'\n[etcd]\nca = 'a'",
                "absolute",
            ),
            (
                "registry = 'etcd:https://a/p'\n[etcd]\nx = 'a'",
                "unknown field",
            ),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn a_file() {
        let tiers = parse(
            "warn = ['1h', '1d']\narchive = 'tape'\n[tier.scratch]\npath = '/s/{user}/'\n\
             longest = '10d'\nat_end = 'archive'\n[tier.tape]\npath = 's3://b/{user}'\n",
        )
        .unwrap();
        assert_eq!(tiers.warn, [86_400, 3600]);
        assert_eq!(tiers.only(), Ok("scratch"));
        let scratch = tiers.get("scratch").unwrap();
        assert_eq!(scratch.place_of("ann", "c"), "/s/ann/c");
        assert_eq!((scratch.usual, scratch.grace), (864_000, GRACE));
        assert!(tiers.get("nope").unwrap_err().contains("scratch, tape"));
    }

    #[test]
    fn tiers_that_are_pools() {
        let place = |text: &str| {
            let tiers = parse(text).unwrap();
            tiers.get("a").unwrap().place_of("ann", "c")
        };
        let usual = place("[tier.a]\npool = 'fast'");
        assert_eq!(usual, "pool:fast/campaigns/ann/c");
        let other = place("[tier.a]\npool = 'fast'\npath = '/x'");
        assert_eq!(other, "pool:fast/x/c");
        for (text, says) in [
            ("path = 'pool:x/y'", "neither an absolute path"),
            ("usual = '1d'", "neither a path nor a pool"),
            ("pool = 'a/b'", "a pool is a name"),
            ("pool = 'a'\npath = 'b'", "a pool is a name"),
        ] {
            let why = parse(&format!("[tier.a]\n{text}")).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn quotas_are_within_what_the_tier_allows() {
        let tiers =
            parse("[tier.a]\npath = '/a'\nlargest = '1K'\nmost_files = 5\n[tier.b]\npath = '/b'");
        let tiers = tiers.unwrap();
        let a = tiers.get("a").unwrap();
        assert_eq!(a.quota(None, Some(3)), Ok((Some(1024), Some(3))));
        assert!(a.quota(Some(1025), None).unwrap_err().contains("1.0 KiB"));
        assert!(a.quota(None, Some(6)).unwrap_err().contains("5 files"));
        assert_eq!(
            tiers.get("b").unwrap().quota(Some(9), None),
            Ok((Some(9), None))
        );
    }

    #[test]
    fn a_user_without_a_file_has_tiers() {
        let dir = std::env::temp_dir().join(format!("fb-own-tiers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let own = |set: &[(&str, &str)]| {
            let variable =
                |name: &str| Some(set.iter().find(|(n, _)| *n == name)?.1.to_owned().into());
            let of_user = ("ann", Path::new("/h"));
            let file = Path::new("/h/.config/forebay/campaigns.toml");
            Tiers::own(&OwnPlaces::find(&variable)?, file, Path::new("/r"), of_user)
        };
        let place = |tiers: &Tiers, name: &str| tiers.get(name).map(|t| t.place_of("ann", "c"));
        let at_home = own(&[("HOME", "/h"), ("SCRATCH", "/nowhere-at-all")]).unwrap();
        let data = "/h/.local/share/forebay/campaign-data/c";
        assert_eq!(at_home.only(), Ok("scratch"));
        for name in ["scratch", "home"] {
            assert_eq!(place(&at_home, name).as_deref(), Ok(data));
        }
        let why = at_home.get("work").unwrap_err();
        assert!(
            why.contains("/h/.config/forebay/campaigns.toml can name") && why.contains("home"),
            "{why}"
        );
        let here = dir.to_str().unwrap();
        let all = own(&[("HOME", "/h"), ("XDG_DATA_HOME", "/d"), ("WORK", here)]).unwrap();
        let below = format!("{here}/forebay-campaigns/c");
        assert_eq!(place(&all, "scratch"), Ok(below.clone()));
        assert_eq!(place(&all, "work"), Ok(below));
        let home = "/d/forebay/campaign-data/c";
        assert_eq!(place(&all, "home").as_deref(), Ok(home));
        assert!(own(&[]).unwrap_err().contains("Set SCRATCH"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, says) in [
            ("[tier.a]\npath = 'relative'", "neither an absolute path"),
            (
                "[tier.a]\npath = '/a'\nat_end = 'archive'",
                "no tier is for archives",
            ),
            ("[tier.a]\npath = '/a'\nat_end = 'move:b'", "no tier 'b'"),
            (
                "[tier.a]\npath = '/a'\nat_end = 'burn'",
                "'burn' can't happen",
            ),
            ("[tier.a]\npath = '/a'\nlongest = 'x'", "'x' is no time"),
            (
                "[tier.a]\npath = '/a'\nlongest = '1d'\nusual = '2d'",
                "longer than",
            ),
            ("[tier.a]\npath = '/a'\nsize = 1", "unknown field"),
            ("[tier.a]\npath = '/a'\nlargest = 'much'", "much"),
            ("archive = 'b'", "no tier 'b'"),
            ("[tier.1]\npath = '/a'", "begins with a letter"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(
                why.contains(says) && why.contains("t.toml"),
                "{text}: {why}"
            );
        }
    }
}
