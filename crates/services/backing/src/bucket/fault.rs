//! Failures of requests: an errno for the copier, and a message for the user.

use rustix::io::Errno;

/// No bucket has this name.
pub const NO_BUCKET: Errno = Errno::NODEV;
pub const NO_CREDENTIALS: Errno = Errno::NOKEY;
pub const BAD_CREDENTIALS: Errno = Errno::KEYREJECTED;
pub const WRONG_REGION: Errno = Errno::REMCHG;
pub const WRONG_CLOCK: Errno = Errno::TIME;
/// A condition of the request doesn't hold: others have changed the object.
pub const CHANGED: Errno = Errno::STALE;
/// The server doesn't support this kind of request.
pub const UNKNOWN: Errno = Errno::OPNOTSUPP;
pub const GARBAGE: Errno = Errno::PROTO;
pub const OVERLOADED: Errno = Errno::AGAIN;
/// The server refuses the request for another reason, given in the server's message.
pub const REFUSED: Errno = Errno::REMOTEIO;

/// The reason why a request failed.
#[derive(Clone, Debug)]
pub struct Fault {
    pub errno: Errno,
    /// Details: the server's message or the network error.
    pub words: String,
    /// Whether another attempt may succeed.
    pub passes: bool,
    /// Whether this attempt or an earlier one may have been carried out by the server, despite the
    /// fault.
    pub may_be_done: bool,
}

impl Fault {
    pub fn new(errno: Errno, words: impl Into<String>) -> Fault {
        Fault {
            errno,
            words: words.into(),
            passes: false,
            may_be_done: false,
        }
    }

    /// Returns a fault for a reply that can't be understood. Another attempt may get a better
    /// reply.
    pub fn garbage(words: impl Into<String>) -> Fault {
        Fault {
            passes: true,
            may_be_done: true,
            ..Fault::new(GARBAGE, words)
        }
    }

    /// Returns the fault for a failure below HTTP.
    pub fn of_network(error: ureq::Error) -> Fault {
        use std::io::ErrorKind as Kind;
        let words = error.to_string();
        let errno = match &error {
            ureq::Error::Timeout(_) => Errno::TIMEDOUT,
            ureq::Error::HostNotFound => Errno::HOSTUNREACH,
            ureq::Error::Io(e) => match e.kind() {
                Kind::ConnectionRefused => Errno::CONNREFUSED,
                Kind::TimedOut => Errno::TIMEDOUT,
                Kind::HostUnreachable | Kind::NetworkUnreachable => Errno::HOSTUNREACH,
                Kind::InvalidData if words.contains("certificate") => Errno::BADE,
                Kind::InvalidData => GARBAGE,
                _ => Errno::CONNRESET,
            },
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => Errno::BADE,
            ureq::Error::ConnectionFailed | ureq::Error::ConnectProxyFailed(_) => {
                Errno::CONNREFUSED
            }
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Errno::INVAL,
            _ => GARBAGE,
        };
        Fault {
            passes: !matches!(errno, Errno::BADE | Errno::INVAL),
            may_be_done: !matches!(errno, Errno::BADE | Errno::INVAL | Errno::CONNREFUSED),
            ..Fault::new(errno, words)
        }
    }

    /// Returns the fault for a reply other than success. `text`: the server's message. `region`:
    /// the bucket's region, if the server has named it.
    pub fn of_reply(status: u16, code: &str, text: &str, region: Option<&str>) -> Fault {
        let errno = match (status, code) {
            (_, "NoSuchBucket") => NO_BUCKET,
            (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken") => BAD_CREDENTIALS,
            (_, "InvalidToken" | "InvalidClientTokenId") => BAD_CREDENTIALS,
            (_, "RequestTimeTooSkewed") => WRONG_CLOCK,
            (_, "PermanentRedirect" | "TemporaryRedirect" | "AuthorizationHeaderMalformed")
            | (301 | 307, _) => WRONG_REGION,
            (_, "EntityTooLarge") => Errno::FBIG,
            (_, "QuotaExceeded" | "XMinioStorageFull" | "InsufficientCapacity") | (507, _) => {
                Errno::NOSPC
            }
            (_, "RequestTimeout" | "SlowDown") | (408 | 429, _) => OVERLOADED,
            (401 | 403, _) => Errno::ACCESS,
            (404, "" | "NoSuchKey" | "NotFound" | "NoSuchUpload") => Errno::NOENT,
            (409 | 412, _) => CHANGED,
            (416, _) => CHANGED,
            (405 | 501, _) => UNKNOWN,
            (500..600, _) => OVERLOADED,
            _ => REFUSED,
        };
        let mut words = match (code, text) {
            ("", _) => format!("status {status}"),
            (code, "") => format!("status {status}, {code}"),
            (code, text) => format!("{code}: {text}"),
        };
        if let (WRONG_REGION, Some(region)) = (errno, region) {
            words = format!("AWS_REGION={region}");
        }
        Fault {
            passes: errno == OVERLOADED,
            may_be_done: status >= 500 && errno == OVERLOADED,
            ..Fault::new(errno, words)
        }
    }
}

/// Returns a sentence for an errno, with advice; None for an errno that isn't in this module.
/// `bucket`: the bucket's name.
pub fn explain(errno: Errno, bucket: &str) -> Option<String> {
    Some(match errno {
        NO_BUCKET => format!("there is no bucket '{bucket}'; check its name and AWS_ENDPOINT_URL"),
        NO_CREDENTIALS => "no credentials were found; set AWS_ACCESS_KEY_ID and \
            AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or AWS_NO_SIGN_REQUEST=yes for a public bucket"
            .into(),
        BAD_CREDENTIALS => "the server refuses the credentials; check that they belong to this \
            server, and haven't expired"
            .into(),
        WRONG_REGION => "the bucket lies in another region; set AWS_REGION to it".into(),
        WRONG_CLOCK => "this host's clock is wrong by more than the server allows; set it".into(),
        Errno::ACCESS => format!(
            "access is denied; ask for the permission on the bucket '{bucket}' (reading needs \
             s3:ListBucket and s3:GetObject, writing s3:PutObject, too)"
        ),
        CHANGED => "others have changed it meanwhile; try again when it rests".into(),
        OVERLOADED => "the server is overloaded or fails; try again later".into(),
        GARBAGE => "the server's reply can't be understood; check AWS_ENDPOINT_URL, and any proxy \
            on the way"
            .into(),
        UNKNOWN => "the server can't do this".into(),
        REFUSED => "the server refuses the request".into(),
        Errno::BADE => "no trusted connection can be made (TLS); name the server's certificates \
            with AWS_CA_BUNDLE"
            .into(),
        Errno::CONNREFUSED => "the server can't be reached; check AWS_ENDPOINT_URL".into(),
        Errno::HOSTUNREACH => "the server's name or address isn't known; check AWS_ENDPOINT_URL, \
            and that this host may reach it"
            .into(),
        Errno::TIMEDOUT => "the server doesn't answer in time; try again later".into(),
        Errno::CONNRESET => "the connection breaks off; try again later".into(),
        Errno::ILSEQ => "its name isn't UTF-8, as keys of a bucket must be; rename it".into(),
        Errno::NAMETOOLONG => "its key would be longer than 1024 bytes".into(),
        Errno::FBIG => "it is larger than the server takes".into(),
        Errno::NOSPC => "the store is full, or your share of it".into(),
        _ => return None,
    })
}
