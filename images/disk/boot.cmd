# U-Boot runs this from the FAT partition: it takes the first slot of BOOT_ORDER that has tries left, counts one off, and starts
# that slot's own kernel. A system that serves gives the tries back (waypost-mark-good); one that does not ends after three.
#
# The counters are in a file of their own, with a checksum: one that was torn by a power cut means the defaults.
#
# The root is named by the id that this disk has, as each card has its own. waypost.disk=KIND says that this script does so
# (disk-id), and what kind of disk it started from (initramfs/scripts/local-top).

setenv scratch ${ramdisk_addr_r}
setenv BOOT_ORDER "A B"
setenv BOOT_A_LEFT 3
setenv BOOT_B_LEFT 3
if load ${devtype} ${devnum}:1 ${scratch} rauc.env; then
    env import -c ${scratch} 0x4000 BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT || echo "waypost: rauc.env is damaged, defaults are taken"
fi

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
if test -z "${slot}"; then
    sleep 5
    reset
fi
echo "waypost: slot ${slot} (A ${BOOT_A_LEFT}, B ${BOOT_B_LEFT} tries left)"

setenv device_tree ${fdt_addr}
test -n "${device_tree}" || setenv device_tree ${fdtcontroladdr}
setenv console
if test "${vendor}" = raspberrypi; then
    # The kernel moves to 2 MiB and is 32 MiB long: the RAM disk stays clear of it.
    setenv ramdisk_addr_r 0x05000000
    setenv console "console=tty1 console=ttyS1,115200"
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
