# U-Boot runs this from the FAT partition. It chooses the first slot of BOOT_ORDER with remaining tries, decrements
# them, and starts the kernel of that slot. A system that serves restores the tries (waypost-mark-good); a slot that
# does not serve is abandoned after three tries.
# The counters are in two files with a checksum. This script writes one after the other, so a power cut tears one of
# them at most; the system writes only the first one. Without either, the defaults apply.
# The root is named by the id of this disk, because each card has its own. waypost.disk=KIND tells the system that
# this script does so (disk-id), and from which kind of disk it started (initramfs/scripts/local-top).

setenv scratch ${ramdisk_addr_r}
setenv BOOT_ORDER "A B"
setenv BOOT_A_LEFT 3
setenv BOOT_B_LEFT 3
setenv counters
for each in rauc.env rauc.bak; do
    if test -z "${counters}"; then
        if load ${devtype} ${devnum}:1 ${scratch} ${each}; then
            if env import -c ${scratch} 0x4000 BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT; then
                setenv counters ${each}
            else
                echo "waypost: ${each} is damaged"
            fi
        fi
    fi
done
test -n "${counters}" || echo "waypost: the counters are damaged, defaults are taken"

setenv slot
for each in ${BOOT_ORDER}; do
    if test -n "${slot}"; then
        true
    elif test "${each}" = A; then
        if test ${BOOT_A_LEFT} -gt 0; then
            setexpr BOOT_A_LEFT ${BOOT_A_LEFT} - 1
            setenv slot A
            setenv part 2
        fi
    elif test "${each}" = B; then
        if test ${BOOT_B_LEFT} -gt 0; then
            setexpr BOOT_B_LEFT ${BOOT_B_LEFT} - 1
            setenv slot B
            setenv part 3
        fi
    fi
done

if test -z "${slot}"; then
    echo "waypost: no slot has tries left, all begin anew"
    setenv BOOT_A_LEFT 3
    setenv BOOT_B_LEFT 3
fi
env export -c -s 0x4000 ${scratch} BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT
fatwrite ${devtype} ${devnum}:1 ${scratch} rauc.env 0x4000
fatwrite ${devtype} ${devnum}:1 ${scratch} rauc.bak 0x4000
if test -z "${slot}"; then
    sleep 5
    reset
fi
echo "waypost: slot ${slot} (A ${BOOT_A_LEFT}, B ${BOOT_B_LEFT} tries left)"

setenv device_tree ${fdt_addr}
test -n "${device_tree}" || setenv device_tree ${fdtcontroladdr}
setenv console
if test "${vendor}" = raspberrypi; then
    # The kernel moves to 2 MiB and has 32 MiB: the RAM disk does not overlap it.
    setenv ramdisk_addr_r 0x05000000
    setenv console "console=tty1 console=ttyS1,115200"
    if test "${fdtfile}" = broadcom/bcm2712-rpi-5-b.dtb; then
        setenv console "console=tty1 console=ttyAMA10,115200"
    fi
fi
if part uuid ${devtype} ${devnum}:${part} partuuid; then
    setenv own "waypost.disk=${devtype}"
    echo "waypost: root ${partuuid} on ${devtype}"
else
    setenv partuuid "67617465-0${part}"
    setenv own
fi
setenv bootargs "root=PARTUUID=${partuuid} ${own} rootfstype=ext4 ro rootwait systemd.volatile=state rauc.slot=${slot} net.ifnames=0 panic=10 ${console}"
if load ${devtype} ${devnum}:${part} ${kernel_addr_r} /vmlinuz; then
    if load ${devtype} ${devnum}:${part} ${ramdisk_addr_r} /initrd.img; then
        booti ${kernel_addr_r} ${ramdisk_addr_r}:${filesize} ${device_tree}
    fi
fi
echo "waypost: slot ${slot} does not start"
sleep 2
reset
