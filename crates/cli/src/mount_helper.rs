//! `mount -t fuse.forebay` and fstab: turns the words of mount(8) into those of `forebay mount`.
//!
//! mount(8) runs `mount.fuse.forebay SOURCE DIR [-sfnvrw] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, a
//! link to this program. Without that link, mount(8) runs fuse's own `mount.fuse`, which runs
//! `forebay SOURCE DIR -o OPTIONS`. SOURCE is `forebay:POOL`, as in the table of mounts, so that
//! `mount -a` recognizes existing mounts.

use crate::fail::Fail;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Names of this program under which mount(8) runs it as a helper.
const NAMES: [&str; 2] = ["mount.fuse.forebay", "mount.forebay"];
/// Prefix of a mount's source, before the pool's name.
const SOURCE: &[u8] = b"forebay:";
/// Options without effect here: mount(8) itself acts on them, or they hold for every mount of a
/// pool (access times don't change).
const WITHOUT_EFFECT: [&str; 20] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "exec",
    "nosuid",
    "nodev",
    "async",
    "noatime",
    "nodiratime",
    "relatime",
    "silent",
    "default_permissions",
];
/// Options of the existing mount. mount(8) repeats them when it remounts.
const OF_THE_KERNEL: [&str; 2] = ["user_id", "group_id"];

/// Returns the command line for `forebay`; None if nothing is to be done.
///
/// # Errors
/// Wrong usage: no source, no directory, or an unsupported option.
pub fn translated(words: Vec<OsString>) -> Result<Option<Vec<OsString>>, Fail> {
    if is_for_mount(&words) {
        of_mount(&words)
    } else {
        Ok(Some(words))
    }
}

fn is_for_mount(words: &[OsString]) -> bool {
    let called = words.first().map(|name| Path::new(name).file_name());
    let by_name = called
        .flatten()
        .is_some_and(|called| NAMES.iter().any(|name| called == *name));
    by_name
        || words
            .get(1)
            .is_some_and(|word| word.as_bytes().starts_with(SOURCE))
}

fn of_mount(words: &[OsString]) -> Result<Option<Vec<OsString>>, Fail> {
    let (mut operands, mut options) = (Vec::new(), Vec::new());
    let mut is_check = false;
    let mut are_flags = true;
    let mut is_sloppy = false;
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match word.as_bytes() {
            b"--" if are_flags => are_flags = false,
            [b'-', b'o', joined @ ..] if are_flags => {
                let list = match joined {
                    b"" => rest.next().map_or(&b""[..], |list| list.as_bytes()),
                    joined => joined,
                };
                options.extend(
                    list.split(|&b| b == b',')
                        .filter(|option| !option.is_empty()),
                );
            }
            b"-t" | b"-N" if are_flags => _ = rest.next(),
            [b'-', b't' | b'N', ..] if are_flags => {}
            [b'-', flags @ ..] if are_flags && !flags.is_empty() => {
                for flag in flags {
                    match flag {
                        b'f' => is_check = true,
                        b's' => is_sloppy = true,
                        b'r' => options.push(b"ro"),
                        // -n: no table of mounts is written. -v: this program prints what it does.
                        // -w: writable. All three are the defaults.
                        b'n' | b'v' | b'w' => {}
                        _ => return Err(unknown(word)),
                    }
                }
            }
            _ => operands.push(word),
        }
    }
    let [source, dir] = operands[..] else {
        return Err(Fail::usage(
            "name what to mount, and where: mount -t fuse.forebay forebay:POOL DIR",
        ));
    };
    if options.contains(&&b"remount"[..]) {
        let is_repeated = |option: &&[u8]| {
            let name = option.split(|&b| b == b'=').next();
            name.is_some_and(|name| OF_THE_KERNEL.iter().any(|known| known.as_bytes() == name))
        };
        options.retain(|option| !is_repeated(option));
    }
    let pool = source.as_bytes();
    let pool = pool.strip_prefix(SOURCE).unwrap_or(pool);
    let mut line: Vec<OsString> = vec!["forebay".into(), "mount".into(), "--pool".into()];
    line.push(OsString::from_vec(pool.to_vec()));
    for option in options {
        line.extend(of_option(option, is_sloppy)?);
    }
    line.extend(["--".into(), dir.clone()]);
    // -f: mount(8) only checks; nothing is mounted.
    Ok((!is_check).then_some(line))
}

fn unknown(word: &OsStr) -> Fail {
    Fail::usage(format!(
        "mount's flag '{}' isn't known; known are -f, -n, -r, -s, -v, -w, -o OPTIONS, -t TYPE and \
         -N NAMESPACE",
        word.to_string_lossy()
    ))
}

/// Returns the arguments of `forebay mount` for one option of mount(8).
fn of_option(option: &[u8], is_sloppy: bool) -> Result<Vec<OsString>, Fail> {
    let shown = String::from_utf8_lossy(option);
    let (name, value) = shown.split_once('=').unwrap_or((&shown, ""));
    Ok(match name {
        "ro" => vec!["--read-only".into()],
        "suid" => vec!["--suid".into()],
        "dev" => vec!["--dev".into()],
        "noexec" => vec!["--no-exec".into()],
        "remount" => vec!["--remount".into()],
        "allow_other" => vec!["--allow-other".into()],
        "node" => vec!["--node".into(), OsStr::new(value).to_owned()],
        "comment" => Vec::new(),
        _ if name.starts_with("x-") || WITHOUT_EFFECT.contains(&name) || is_sloppy => Vec::new(),
        _ => {
            return Err(Fail::usage(format!(
                "the mount option '{shown}' isn't kept; leave it out (kept are ro, noexec, suid, dev, allow_other and node=K)"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<String> {
        let words = line.split(' ').map(OsString::from).collect();
        let words = translated(words).ok()??;
        Some(words.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn what_mount_says_is_a_command_line() {
        let helper = "/sbin/mount.fuse.forebay forebay:p /mnt";
        let plain = "forebay mount --pool p";
        assert_eq!(of(helper), Some(format!("{plain} -- /mnt")));
        assert_eq!(
            of(&format!(
                "{helper} -o rw,noauto,x-systemd.automount,node=1,allow_other -n"
            )),
            Some(format!("{plain} --node 1 --allow-other -- /mnt"))
        );
        // As called by mount.fuse.
        assert_eq!(
            of("forebay forebay:p /mnt -o ro,dev,suid"),
            Some(format!("{plain} --read-only --dev --suid -- /mnt"))
        );
        assert_eq!(
            of("mount.forebay p /mnt -t fuse.forebay"),
            Some(format!("{plain} -- /mnt"))
        );
        let checked: Vec<OsString> = format!("{helper} -sf").split(' ').map(Into::into).collect();
        assert!(translated(checked).is_ok_and(|line| line.is_none()));
        assert_eq!(
            of(&format!("{helper} -onoexec,nofail -vr -tfuse.forebay")),
            Some(format!("{plain} --no-exec --read-only -- /mnt"))
        );
        // An option that only contains an f isn't -f.
        for wrong in ["-oforce", "--foo", "-fx", "-F"] {
            let words = format!("{helper} {wrong}");
            let words = words.split(' ').map(OsString::from).collect();
            assert!(translated(words).is_err(), "{wrong}");
        }
        assert_eq!(
            of(&format!("{helper} -o remount,ro,noexec,user_id=0")),
            Some(format!("{plain} --remount --read-only --no-exec -- /mnt"))
        );
        // Unsupported options.
        assert_eq!(of(&format!("{helper} -o max_read=4096")), None);
        assert!(translated(vec!["mount.forebay".into(), "p".into()]).is_err());
        // Other commands.
        assert_eq!(of("forebay mount /mnt"), Some("forebay mount /mnt".into()));
    }
}
