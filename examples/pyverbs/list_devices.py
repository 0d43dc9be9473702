"""The devices of this machine: from verbs, from the `rdma` command, from /sys."""

import json
import os
import subprocess

import pyverbs.device as d
import pyverbs.enums as e

SYSFS = "/sys/class/infiniband"


def main():
    links = json.loads(subprocess.check_output(["rdma", "link", "show", "-j"]))
    assert sorted(os.listdir(SYSFS)) == sorted(link["ifname"] for link in links)
    for device in d.get_device_list():
        name = device.name.decode()
        print(device)
        with d.Context(name=name) as ctx:
            attr, port = ctx.query_device(), ctx.query_port(1)
            print(attr)
            print(port)
            link = next(link for link in links if link["ifname"] == name and link["port"] == 1)
            assert (link["state"] == "ACTIVE") == (port.state == e.IBV_PORT_ACTIVE)
            with open(f"{SYSFS}/{name}/ports/1/pkeys/0") as file:
                assert int(file.read(), 16) == ctx.query_pkey(1, 0) == 0xFFFF
            for entry in ctx.query_gid_table(port.gid_tbl_len):
                print(entry)
                with open(f"{SYSFS}/{name}/ports/1/gids/{entry.gid_index}") as file:
                    assert file.read().strip() == entry.gid_str()
            if "netdev" in link:
                print(subprocess.check_output(["ip", "addr", "show", link["netdev"]], text=True))
    print(f"list_devices: {len(links)} devices")


if __name__ == "__main__":
    main()
