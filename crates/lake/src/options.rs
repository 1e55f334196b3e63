//! How a lake is opened: numbers and names, no parts.

use std::fmt;

/// The checksum that an S3 lake is asked to verify and keep. Some S3 clones refuse those they do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// CRC-64/NVME of the whole object.
    #[default]
    Crc64Nvme,
    /// None; the object is checked by size and etag only.
    None,
}

/// When to give up and how much to ask at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// Most tries of one call, the first included.
    pub tries_max: u32,
    /// Shortest wait between two tries.
    pub wait_ms_min: u64,
    /// Longest wait between two tries.
    pub wait_ms_max: u64,
    /// A single request may take this long, and one second more for each `bytes_per_s_min` that it moves.
    pub request_ms_max: u64,
    /// The slowest transfer that is still waited for.
    pub bytes_per_s_min: u64,
    /// Most requests at the same time; fewer while the lake says that it is busy.
    pub requests_max: usize,
    /// Retries that may follow each other without a success in between; each success gives a tenth back.
    pub budget: u32,
    /// Most requests in a second; 0 for no limit.
    pub requests_per_s_max: u64,
    /// Most bytes in a second, there and back together; 0 for no limit.
    pub bytes_per_s_max: u64,
}

impl Default for RetryOptions {
    fn default() -> RetryOptions {
        RetryOptions {
            tries_max: 6,
            wait_ms_min: 50,
            wait_ms_max: 10_000,
            request_ms_max: 30_000,
            bytes_per_s_min: 1 << 20,
            requests_max: 128,
            budget: 100,
            requests_per_s_max: 0,
            bytes_per_s_max: 0,
        }
    }
}

/// How a lake is opened. What is not set comes from the url, then from the environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LakeOptions {
    /// The endpoint, like `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// The bucket is in the path and not in the host name. By default so with an own endpoint.
    pub path_style: Option<bool>,
    /// The access key (S3), or the account (Azure).
    pub access_key_id: Option<String>,
    /// The secret key (S3), or the account key (Azure).
    pub secret_access_key: Option<String>,
    /// The token of temporary credentials.
    pub session_token: Option<String>,
    /// Requests are not signed; for public buckets.
    pub anonymous: bool,
    /// The checksum that the lake verifies.
    pub checksum: Option<Checksum>,
    /// The lake honours conditions of writes, as S3 does. If not, the object is looked at just before the write,
    /// which leaves a small gap.
    pub conditional: Option<bool>,
    /// Bodies are part of the signature, which costs a SHA-256 of every byte. By default only without TLS.
    pub payload_signed: Option<bool>,
    /// The storage class of objects that are written (S3); none for that of the bucket.
    pub storage_class: Option<String>,
    /// When to give up and how much to ask at once.
    pub retry: RetryOptions,
    /// A `file://` directory that is missing is made. Otherwise a file system that is not mounted is an error.
    pub create_root: bool,
    /// A `file://` lake never uses extended attributes, for file systems that lose them.
    pub file_sidecar_only: bool,
    /// What a `file://` lake takes away from the mode of each file, in octal digits; by default 0077.
    pub file_umask: Option<String>,
}

impl fmt::Debug for LakeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "hidden");
        f.debug_struct("LakeOptions")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("path_style", &self.path_style)
            .field("access_key_id", &self.access_key_id)
            .field("secret_access_key", &hidden(&self.secret_access_key))
            .field("session_token", &hidden(&self.session_token))
            .field("anonymous", &self.anonymous)
            .field("checksum", &self.checksum)
            .field("conditional", &self.conditional)
            .field("payload_signed", &self.payload_signed)
            .field("storage_class", &self.storage_class)
            .field("retry", &self.retry)
            .field("create_root", &self.create_root)
            .field("file_sidecar_only", &self.file_sidecar_only)
            .field("file_umask", &self.file_umask)
            .finish()
    }
}
