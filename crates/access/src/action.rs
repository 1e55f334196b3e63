//! What can be done: one action for each method of the store, and what kind of thing it is.

use stoker_store::Order;

/// What an action needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// To know that something is there.
    Glimpse,
    /// To see names and properties.
    Look,
    /// To see bytes.
    Read,
    /// To change files.
    Write,
    /// To see how the cluster is.
    Watch,
    /// To run the cluster.
    Operate,
}

macro_rules! actions {
    ($($(#[$words:meta])* $name:ident: $kind:ident,)*) => {
        /// What somebody wants to do: a method of the store.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum Action { $($(#[$words])* #[allow(missing_docs, reason = "methods of the store say what they do")] $name,)* }

        impl Action {
            /// All of them.
            pub const ALL: &'static [Action] = &[$(Action::$name,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Action::$name => stringify!($name),)* }
            }

            /// What it needs.
            pub fn kind(self) -> Kind {
                match self { $(Action::$name => Kind::$kind,)* }
            }
        }
    };
}

actions! {
    Volumes: Glimpse,
    Volume: Glimpse,
    VolumeCreate: Write,
    VolumeSet: Operate,
    VolumeDelete: Write,
    Stat: Look,
    Open: Read,
    List: Look,
    Create: Write,
    Edit: Write,
    EditNow: Write,
    Entry: Look,
    Directory: Look,
    Inodes: Write,
    Lock: Read,
    LocksKeep: Glimpse,
    Link: Write,
    Copy: Write,
    Rename: Write,
    Delete: Write,
    Versions: Look,
    DeleteVersions: Write,
    SetVersionLock: Write,
    SetAttributes: Write,
    VolumeSetting: Glimpse,
    SetVolumeSetting: Write,
    UploadCreate: Write,
    UploadCreateFull: Write,
    UploadPartOpen: Read,
    PartChecksums: Look,
    UploadPart: Write,
    UploadPartCopy: Write,
    UploadParts: Look,
    Uploads: Look,
    UploadComplete: Write,
    UploadAbort: Write,
    SetBegin: Write,
    SetShard: Write,
    SetShardComplete: Write,
    SetPublish: Write,
    SetAbort: Write,
    SetStatus: Look,
    SetFind: Look,
    Sets: Look,
    SetLatest: Look,
    Receipt: Look,
    Wait: Look,
    Drain: Write,
    Stage: Read,
    /// To see jobs.
    JobLook: Look,
    /// To submit, start and end jobs. What a job reads and writes is decided place by place.
    JobChange: Write,
    Conflicts: Look,
    ConflictResolve: Write,
    AccessKeys: Watch,
    AccessKey: Operate,
    AccessKeyPut: Operate,
    AccessKeyDelete: Operate,
    Explain: Look,
    Status: Watch,
    Counters: Watch,
    /// An order that only looks.
    OperateLook: Watch,
    /// An order that changes something, or shows what only operators see.
    Operate: Operate,
}

/// The action of an order. Rows of the catalog hold everything that there is.
pub fn order_action(order: &Order) -> Action {
    match order {
        Order::CatalogRows { .. } => Action::Operate,
        order if order.only_reads() => Action::OperateLook,
        _ => Action::Operate,
    }
}
