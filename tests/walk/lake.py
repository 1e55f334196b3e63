"""The object store of the walk: SeaweedFS on a machine of its own, whose link can be taken down."""

import boto3

from harness import wait_until
from lakes import ACCESS_KEY, BUCKET, SECRET_KEY, SeaweedFs
from net import within


class Lake(SeaweedFs):
    def __init__(self, program, folder, net, name):
        super().__init__(program, folder)
        self.net, self.name_of_machine, self.address = net, name, net.address(name)
        self.endpoint = f"http://{self.address}:{self.port}"

    def start(self):
        command, environment = super().start()
        command = [word.replace("127.0.0.1", self.address) for word in command]
        # Its logs go where temporary files go.
        return within(self.net.space(self.name_of_machine), command), {**environment, "TMPDIR": str(self.folder)}

    def make_bucket(self):
        s3 = boto3.client("s3", endpoint_url=self.endpoint, region_name=self.region,
                          aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)  # fmt: skip

        def is_made():
            try:
                s3.create_bucket(Bucket=BUCKET)
                return True
            except Exception:  # it is not all there yet
                return False

        wait_until(is_made, "the lake has a bucket")
