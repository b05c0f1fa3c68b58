//! Passes RLIMIT_FSIZE to the store's media, which enforce it.

use forebay_intercept::raw;

/// Reads RLIMIT_FSIZE from the kernel, and passes it to the media.
pub fn refresh() {
    let mut limit = [libc::RLIM_INFINITY; 2];
    let args = [
        0,
        i64::from(libc::RLIMIT_FSIZE),
        0,
        limit.as_mut_ptr() as i64,
        0,
        0,
    ];
    // SAFETY: the kernel writes a struct rlimit64 to `limit`, which has room for it.
    unsafe { raw(libc::SYS_prlimit64, args) };
    forebay_media::set_size_limit(limit[0]);
}
